"""Where every incoming tensor lands in the running model, once that is known: the load plan.

A model's own loaders say it (:mod:`~weightwire_vllm_engine.recording`), and a round through vLLM's reload proves it
(:mod:`~weightwire_vllm_engine.proof`). From then on bytes go from the wire's memory straight into the parameters, whose
storage never moves: CUDA graphs were captured over it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch


class UnplannableError(Exception):
    """This model, or this manifest, can't be loaded by a plan; says why. It takes vLLM's reload instead."""


class HalfLoadedError(UnplannableError):
    """It can't be now: an update was left half done. The next reload ends that."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an incoming tensor, and its place.

    Attributes:
        target: a view of a parameter, contiguous.
        offset: where the part begins in the incoming tensor, in elements.
        size: its shape.
        stride: its strides in the incoming tensor.
    """

    target: torch.Tensor
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part, as a view of an incoming *tensor*, which is contiguous."""
        return tensor.as_strided(self.size, self.stride, int(tensor.storage_offset()) + self.offset)


@dataclass(frozen=True, slots=True)
class Home:
    """Where a tensor of the running model lives.

    Attributes:
        name: in the model.
        owner: the module that has it.
        leaf: its name in there.
        tensor: the parameter or buffer itself.
        pointer: the address of its storage when the plan was made.
    """

    name: str
    owner: torch.nn.Module
    leaf: str
    tensor: torch.Tensor
    pointer: int

    @property
    def settled(self) -> bool:
        """Whether the module holds that very tensor: in the middle of a reload it holds another."""
        return any(tensor is self.tensor for tensor in self._held)

    @property
    def lost(self) -> bool:
        """Whether the module holds something without memory in its place: a reload that broke off leaves that."""
        return any(tensor is not None and tensor.is_meta for tensor in self._held)

    @property
    def _held(self) -> tuple[torch.Tensor | None, ...]:
        """What the module holds under that name, among its parameters and its buffers."""
        return self.owner._parameters.get(self.leaf), self.owner._buffers.get(self.leaf)  # noqa: SLF001 - attributes may be computed

    @property
    def unmoved(self) -> bool:
        """Whether it is where it was, so that what was recorded still leads into it."""
        return self.settled and self.tensor.untyped_storage().data_ptr() == self.pointer


@dataclass(frozen=True, slots=True)
class Plan:
    """A load plan for one model and one manifest.

    Attributes:
        pieces: for each tensor of the manifest, in order; none for one that this worker does not load, such as a layer
            of another pipeline stage.
        homes: what they land in, for each tensor likewise.
        everything: the tensors of the model, also those that nothing lands in, such as a table of angles.
    """

    pieces: tuple[tuple[Piece, ...], ...]
    homes: tuple[tuple[Home, ...], ...]
    everything: tuple[Home, ...] = ()

    @property
    def moved(self) -> str:
        """The name of a tensor of the model that is not where it was, or nowhere; empty if all are well."""
        moved = (home.name for home in self.all_homes() if not home.unmoved)
        return next(moved, "") or next((home.name for home in self.everything if home.lost), "")

    def all_homes(self) -> Iterator[Home]:
        """Each once."""
        yield from {id(home.tensor): home for homes in self.homes for home in homes}.values()


def homes(model: torch.nn.Module) -> Iterator[Home]:
    """The parameters and buffers of *model*, each once, at the first place that has it."""
    seen: set[int] = set()
    for prefix, owner in model.named_modules():
        held = {**owner._parameters, **owner._buffers}  # noqa: SLF001 - attributes may be computed
        for leaf, tensor in held.items():
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                name = f"{prefix}.{leaf}" if prefix else leaf
                yield Home(name, owner, leaf, tensor, 0 if tensor.is_meta else tensor.untyped_storage().data_ptr())
