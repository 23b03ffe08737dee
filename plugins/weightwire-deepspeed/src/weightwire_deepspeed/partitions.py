"""From ZeRO-3's partitions to whole tensors."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import torch
from deepspeed.runtime.zero import GatheredParameters
from weightwire.errors import ManifestError
from weightwire_torch.quantised import is_four_bit
from weightwire_torch.sharding import Unsharded

from weightwire_deepspeed.claim import is_managed


class Partitions(Unsharded):
    """Implements :class:`~weightwire_torch.sharding.Sharding`; tensors that ZeRO-3 does not manage are whole already.

    A gathered tensor is valid inside its context and not a moment longer. So the context of a group stays open until
    the next group is asked for, which is as long as its tensors are used, and nothing has to be copied: one group
    is all that is ever gathered. The last group of a round, which nothing follows, is copied; it is kept small.
    """

    small_last = True

    def __init__(self) -> None:
        """Gather nothing yet."""
        self._open = ExitStack()

    def settle(self, model: torch.nn.Module) -> None:
        """Partition what an earlier group left gathered."""
        del model
        self._open.close()

    def form(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Of a partitioned tensor the shape it has when it is whole."""
        if not is_managed(tensor):
            return super().form(name, tensor)
        if is_four_bit(tensor):
            raise ManifestError(f"The tensor {name!r} is a 4-bit weight that ZeRO-3 has partitioned.")
        return torch.empty(tensor.ds_shape, dtype=tensor.dtype, device="meta")  # type: ignore[attr-defined] # DeepSpeed's

    def whole(self, tensors: Sequence[torch.Tensor], *, last: bool) -> Sequence[torch.Tensor]:
        """Gather a group in one step, the same on every rank."""
        managed = [tensor for tensor in tensors if is_managed(tensor)]
        if managed:
            self._open.enter_context(GatheredParameters(managed, modifier_rank=None))
        views = [tensor.detach() for tensor in tensors]
        if not last:
            return views
        copies = [view.clone() for view in views]
        self._open.close()
        return copies
