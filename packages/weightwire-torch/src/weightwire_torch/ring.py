"""The bucket ring: memory for packs, allocated once and used again and again.

It is one piece of memory. Packs are laid out in it so that a few neighbours in the stream never overlap: as many as
may be under way at once. One pack can be far larger than the others (it ends with the embedding, say), and slots of
that size for all would take several times as much.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch
from weightwire.messages import PackGeometry, TensorMeta

from weightwire_torch.framing import Pack, largest_pack, packs

SLOTS = 3
"""Packs under way where nothing else is said: they keep as many connections of a gloo group busy."""


class Region(msgspec.Struct, frozen=True):
    """Where a pack lies.

    Attributes:
        start: its first byte.
        stop: one past its last.
        after: how many packs, counted from the first of the window, must be done with before it may be written.
    """

    start: int
    stop: int
    after: int


class Ring:
    """Memory for packs."""

    def __init__(self, nbytes: int, slots: int, *, device: torch.device | str = "cpu") -> None:
        """Allocate, and write every page, so that neither a lack of memory nor page faults wait for a round.

        Args:
            nbytes: at least the size of the largest pack.
            slots: how many packs may be under way.
            device: where.
        """
        self.nbytes = nbytes
        self.slots = slots
        self._memory = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        self.device = self._memory.device

    @classmethod
    def fitting(
        cls,
        tensors: Sequence[TensorMeta],
        geometry: PackGeometry,
        *,
        slots: int = 0,
        device: torch.device | str = "cpu",
    ) -> Ring:
        """A ring for every window of *tensors*: at most the largest tensor and as many buckets as there are slots.

        Args:
            tensors: the manifest's.
            geometry: how they are packed.
            slots: how many packs may be under way; 0 for the geometry's ``num_buffers``, and :data:`SLOTS` at least.
            device: where.
        """
        slots = slots or max(SLOTS, geometry.num_buffers)
        largest = largest_pack(tensors, geometry)
        most = max((meta.nbytes for meta in tensors), default=0) + slots * geometry.buffer_bytes
        sizes = [pack.nbytes for pack in packs(tensors, geometry)]
        used = max((region.stop for region in lay_out(sizes, slots=slots, capacity=most)), default=0)
        return cls(max(largest, used), slots, device=device)

    def lay_out(self, window: Sequence[Pack]) -> tuple[Region, ...]:
        """Give each pack of a window its region."""
        return lay_out([pack.nbytes for pack in window], slots=self.slots, capacity=self.nbytes)

    def at(self, region: Region) -> torch.Tensor:
        """The memory of a region."""
        return self._memory[region.start : region.stop]

    def filler(self, nbytes: int) -> torch.Tensor:
        """Bytes that mean nothing: whatever lies there."""
        return self._memory[:nbytes]


def lay_out(sizes: Sequence[int], *, slots: int, capacity: int) -> tuple[Region, ...]:
    """Lay packs out in *capacity* bytes.

    Each goes to the lowest place where it overlaps none of the ``slots - 1`` before it, so that memory just used,
    and still in a cache, is used again. Where there is none, it goes to the front once all before it are done with.
    """
    regions: list[Region] = []
    for index, size in enumerate(sizes):
        busy = regions[max(0, index - slots + 1) :]
        start = _lowest_gap(busy, size)
        if start + size <= capacity:
            regions.append(Region(start, start + size, max(0, index - slots + 1)))
        else:
            regions.append(Region(0, size, index))
    return tuple(regions)


def _lowest_gap(busy: Sequence[Region], size: int) -> int:
    """Where *size* bytes are free. Regions may lie within others: one that went to the front waits for those there."""
    free = 0
    for start, stop in sorted((region.start, region.stop) for region in busy):
        if start - free >= size:
            break
        free = max(free, stop)
    return free
