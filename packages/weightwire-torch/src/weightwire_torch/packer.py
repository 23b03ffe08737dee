"""From gathered tensors to packs handed over: in place where a pack is one tensor, through the ring otherwise."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from weightwire_torch.broadcasting import Broadcaster
from weightwire_torch.dtypes import wire_name
from weightwire_torch.framing import Pack, place, put_misaligned, raw
from weightwire_torch.stream import Stream


class Places:
    """Where the tensors of a window's packs lie in the ring: the same in every round, and worth 5 µs a tensor."""

    def __init__(self, packs: Sequence[Pack]) -> None:
        """Know none yet."""
        self.packs = packs
        self._known: dict[int, list[torch.Tensor | None]] = {}

    def of(self, index: int, room: torch.Tensor) -> list[torch.Tensor | None]:
        """The places in pack *index*, whose memory is *room*: always the same; None where one would be misaligned."""
        if index not in self._known:
            pack = self.packs[index]
            self._known[index] = [place(room, pack, index=within) for within in range(len(pack.tensors))]
        return self._known[index]


class Packer:
    """Takes the tensors of a window in order."""

    def __init__(self, broadcaster: Broadcaster, stream: Stream, *, places: Places, lasting: bool = False) -> None:
        """Begin with the first tensor of the first pack.

        Args:
            broadcaster: the transport.
            stream: where packs are handed over.
            places: the window's.
            lasting: tensors stay as they are until the window was sent, not only while they are added.
        """
        self.seconds = 0.0
        self._broadcaster = broadcaster
        self._stream = stream
        self._packs = places.packs
        self._places = places
        self._lasting = lasting
        self._pack = 0
        self._within = 0
        self._room = torch.empty(0, dtype=torch.uint8)
        self._targets: list[torch.Tensor] = []
        self._tensors: list[torch.Tensor] = []

    def add(self, tensors: Sequence[torch.Tensor]) -> None:
        """Take the next tensors. When this returns, they may change, unless they are lasting.

        Raises:
            BaseException: what stopped the stream, or what copying raised.
        """
        borrowed = False
        for tensor in tensors:
            if self._may_travel_in_place(tensor):
                self._hand_over(raw(tensor))
                borrowed = True
            else:
                self._copy(tensor)
        self._flush()
        if borrowed and not self._lasting:
            self._stream.settle()

    def _may_travel_in_place(self, tensor: torch.Tensor) -> bool:
        pack = self._packs[self._pack]
        return (
            len(pack.tensors) == 1
            and tensor.device == self._stream.device
            and tensor.is_contiguous()
            and wire_name(tensor.dtype) == pack.tensors[0].dtype
        )

    def _copy(self, tensor: torch.Tensor) -> None:
        pack = self._packs[self._pack]
        if self._within == 0:
            self._room = self._stream.room(self._pack)
        target = self._places.of(self._pack, self._room)[self._within]
        if target is None:
            put_misaligned(self._room, pack, index=self._within, tensor=tensor)
        else:
            self._targets.append(target)
            self._tensors.append(tensor)
        self._within += 1
        if self._within == len(pack.tensors):
            self._flush()
            self._hand_over(self._room)

    def _flush(self) -> None:
        if self._targets:
            began = time.perf_counter()
            self._broadcaster.place(self._targets, self._tensors)
            self.seconds += time.perf_counter() - began
            self._targets.clear()
            self._tensors.clear()

    def _hand_over(self, flat: torch.Tensor) -> None:
        self._stream.hand_over(flat, self._broadcaster.ready())
        self._pack += 1
        self._within = 0
