"""The receiving side of the framing: packs come into a ring, and go out as named tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from weightwire.messages import PackGeometry, TensorMeta

from weightwire_torch.broadcasting import Flight
from weightwire_torch.framing import packs, views
from weightwire_torch.ring import Region, Ring


class Receiving(Protocol):
    """A member of a group that receives."""

    def begin(self, flat: torch.Tensor) -> Flight:
        """Begin to receive the next broadcast of rank 0 into *flat*."""


def receive(
    group: Receiving, tensors: Sequence[TensorMeta], *, geometry: PackGeometry, ring: Ring
) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Receive *tensors*, pack by pack.

    The next packs are received while one is being used, as many as the ring has slots to spare.

    Args:
        group: this member.
        tensors: what the sender sends: the same metas in the same order.
        geometry: the same as the sender's.
        ring: made with :meth:`Ring.fitting`, and used for nothing else meanwhile.

    Yields:
        Names and tensors of one pack. The tensors are views of the ring: valid until the next step.

    Raises:
        DeadlineExceeded: nothing came within the group's timeout.
        ChannelError: the sender is gone, or left the group.
    """
    cut = packs(tensors, geometry)
    regions = ring.lay_out(cut)
    for index in arrivals(group, ring, regions):
        pack, arrived = cut[index], views(ring.at(regions[index]), cut[index])
        yield [(meta.name, tensor) for meta, tensor in zip(pack.tensors, arrived, strict=True)]


def arrivals(group: Receiving, ring: Ring, regions: Sequence[Region]) -> Iterator[int]:
    """Receive pack by pack, each in its region of the ring.

    Args:
        group: this member.
        ring: used for nothing else meanwhile.
        regions: as :meth:`Ring.lay_out` gave them.

    Yields:
        The number of the pack that has arrived: it is there until the next step.

    Raises:
        DeadlineExceeded: nothing came within the group's timeout.
        ChannelError: the sender is gone, or left the group.
    """
    flights: deque[Flight] = deque()
    for index in range(len(regions)):
        for ahead in regions[index + len(flights) :]:
            if ahead.after > index:  # its memory is still in use
                break
            flights.append(group.begin(ring.at(ahead)))
        flights.popleft().land()
        yield index
