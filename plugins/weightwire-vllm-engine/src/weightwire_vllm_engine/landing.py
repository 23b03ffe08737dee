"""Landing packs by a plan: one call of torch for each, and no work in Python for each tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from weightwire_torch.framing import Pack, views

from weightwire_vllm_engine.plan import Plan


class Landing:
    """What to do when one pack has arrived.

    Attributes:
        lasts: it is good for every round: its memory and the parameters stay where they are. (A tensor that begins
            where its dtype can't is a copy of what has arrived.)
    """

    def __init__(self, pack: Pack, memory: torch.Tensor, *, plan: Plan, first: int) -> None:
        """Prepare.

        Args:
            pack: what arrives.
            memory: where it has arrived.
            plan: where it goes.
            first: the index in the manifest of the first tensor of the window that the pack is cut from.
        """
        self._even: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        self._uneven: list[tuple[torch.Tensor, torch.Tensor]] = []
        arrived = views(memory, pack)
        self.lasts = _lie_in(arrived, memory)
        for number, tensor in enumerate(arrived):
            for piece in plan.pieces[first + pack.start + number]:
                self._add(piece.target, piece.of(tensor))

    def land(self) -> None:
        """Copy, on the calling thread's stream."""
        with torch.no_grad():
            for targets, sources in self._even.values():
                torch._foreach_copy_(targets, sources)
            for target, source in self._uneven:
                target.copy_(source)

    def _add(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """What is alike goes in one launch; one that is not would make torch copy all of them one by one."""
        if source.dtype == target.dtype and source.device == target.device and source.is_contiguous():
            targets, sources = self._even.setdefault(target.dtype, ([], []))
            targets.append(target)
            sources.append(source)
        else:
            self._uneven.append((target, source))


def _lie_in(tensors: Sequence[torch.Tensor], memory: torch.Tensor) -> bool:
    """Whether all are views of *memory*."""
    whole = memory.untyped_storage().data_ptr()
    return all(tensor.untyped_storage().data_ptr() == whole for tensor in tensors)
