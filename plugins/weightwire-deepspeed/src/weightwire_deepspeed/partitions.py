"""From ZeRO-3's partitions to whole tensors."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import torch
from weightwire_torch.sharding import Unsharded

from weightwire_deepspeed.claim import is_managed


class Partitions(Unsharded):
    """Implements :class:`~weightwire_torch.sharding.Sharding`; tensors that ZeRO-3 does not manage are whole already.

    A gathered tensor is valid inside its context and not a moment longer. So the context of a group stays open until
    its tensors are released: they need not be copied, and one group is all that is ever gathered.
    """

    collective = True

    def __init__(self) -> None:
        """Gather nothing yet."""
        self._open = ExitStack()

    def form(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Of a partitioned tensor the shape it has when it is whole."""
        if not is_managed(tensor):
            return super().form(name, tensor)
        return torch.empty(tensor.ds_shape, dtype=tensor.dtype, device="meta")  # type: ignore[attr-defined] # DeepSpeed's

    def traits(self, tensor: torch.Tensor) -> tuple[object, ...]:
        """Of a partitioned tensor those that it has when it is whole, whether it is or not."""
        if not is_managed(tensor):
            return super().traits(tensor)
        return type(tensor), tensor.dtype, tensor.ds_shape  # type: ignore[attr-defined] # DeepSpeed's

    def whole(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Gather a group in one step, the same on every rank."""
        managed = [tensor for tensor in tensors if is_managed(tensor)]
        if managed:
            # Whoever has a partitioned tensor has DeepSpeed; this module is also imported where nobody does.
            from deepspeed.runtime.zero import GatheredParameters  # noqa: PLC0415

            self._open.enter_context(GatheredParameters(managed, modifier_rank=None))
        return super().whole(tensors)

    def release(self) -> None:
        """Partition the group again."""
        self._open.close()
