"""How a training framework keeps a model's tensors apart, and how they are made whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from weightwire_torch.manifest import refuse_unsendable
from weightwire_torch.quantised import dequantised, form_of, is_four_bit


class Sharding(Protocol):
    """What a source asks of a framework. Every method is called on every rank, on the caller's thread.

    Attributes:
        small_last: the last group shall be as small as can be, since it is copied.
    """

    small_last: bool

    def settle(self, model: torch.nn.Module) -> None:
        """Bring *model* into the state in which its tensors can be read. Before each gather; no collective."""

    def form(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor on meta with the dtype and the full shape. No collective.

        Raises:
            ManifestError: it can't be made whole by this framework; names it, and says what to install.
        """

    def whole(self, tensors: Sequence[torch.Tensor], *, last: bool) -> Sequence[torch.Tensor]:
        """Make tensors whole; a collective, in lock-step on all ranks.

        Args:
            tensors: those of one group.
            last: no group follows in this round.

        Returns:
            As many, complete on the current stream; they stay as they are until the next call.
        """


class Unsharded:
    """Every tensor is whole, on every rank."""

    small_last = False

    def settle(self, model: torch.nn.Module) -> None:
        """Nothing to do."""

    def form(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Shape and dtype as they are; of 4-bit weights, as they are used."""
        refuse_unsendable(name, tensor)
        shape, dtype = form_of(tensor) if is_four_bit(tensor) else (tensor.shape, tensor.dtype)
        return torch.empty(shape, dtype=dtype, device="meta")

    def whole(self, tensors: Sequence[torch.Tensor], *, last: bool) -> Sequence[torch.Tensor]:
        """The tensors themselves; 4-bit weights dequantised."""
        del last
        return [dequantised(tensor) if is_four_bit(tensor) else tensor.detach() for tensor in tensors]
