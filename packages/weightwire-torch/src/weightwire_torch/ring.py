"""The bucket ring: memory for packs, allocated once and used again and again."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weightwire.messages import PackGeometry, TensorMeta
from weightwire_torch.framing import largest_pack


class Ring:
    """A few slots, each as large as the largest pack."""

    def __init__(self, slots: int, nbytes: int, device: torch.device | str = "cpu") -> None:
        """Allocate and write every page, so that neither running out of memory nor page faults wait for a round.

        Args:
            slots: how many packs may be under way.
            nbytes: the size of a slot.
            device: where.
        """
        self.nbytes = nbytes
        self._slots = [torch.zeros(nbytes, dtype=torch.uint8, device=device) for _ in range(slots)]
        self.device = self._slots[0].device

    def __len__(self) -> int:
        """How many slots there are."""
        return len(self._slots)

    def slot(self, index: int, nbytes: int) -> torch.Tensor:
        """The first *nbytes* of the slot whose turn it is for pack *index*."""
        return self._slots[index % len(self._slots)][:nbytes]

    @classmethod
    def fitting(cls, tensors: Sequence[TensorMeta], geometry: PackGeometry, device: torch.device | str = "cpu") -> Ring:
        """A ring for every window of *tensors*."""
        return cls(max(1, geometry.num_buffers), largest_pack(tensors, geometry), device)
