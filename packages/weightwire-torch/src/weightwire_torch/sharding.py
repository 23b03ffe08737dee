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
        collective: whether :meth:`whole` is one.
    """

    collective: bool

    def settle(self, model: torch.nn.Module) -> None:
        """Bring *model* into the state in which its tensors can be read. Before each gather; no collective."""

    def form(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor on meta with the dtype and the full shape. No collective.

        Raises:
            ManifestError: it can't be made whole by this framework; names it, and says what to install.
        """

    def traits(self, tensor: torch.Tensor) -> tuple[object, ...]:
        """What :meth:`form` depends on. No collective, and cheap: it is asked about every tensor before each round."""

    def whole(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Make the tensors of one group whole; a collective, in lock-step on all ranks.

        Returns:
            As many, complete on the current stream. They stay as they are until :meth:`release`, which comes before
            the next call.
        """

    def release(self) -> None:
        """Nobody uses the tensors of the last group any more. Idempotent."""


class Unsharded:
    """Every tensor is whole, on every rank."""

    collective = False

    def settle(self, model: torch.nn.Module) -> None:
        """Nothing to do."""

    def form(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Shape and dtype as they are; of 4-bit weights, as they are used."""
        refuse_unsendable(name, tensor)
        shape, dtype = form_of(tensor) if is_four_bit(tensor) else (tensor.shape, tensor.dtype)
        return torch.empty(shape, dtype=dtype, device="meta")

    def traits(self, tensor: torch.Tensor) -> tuple[object, ...]:
        """What is told of it, and what it would be refused for. The type of a DTensor is another than a tensor's."""
        return type(tensor), tensor.dtype, tensor.shape, tensor.is_meta, tensor.layout

    def whole(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The tensors themselves; 4-bit weights dequantised."""
        return [dequantised(tensor) if is_four_bit(tensor) else tensor.detach() for tensor in tensors]

    def release(self) -> None:
        """Nothing to do."""
