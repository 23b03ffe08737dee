"""A worker's end of an NCCL group: packs come in on a stream of their own, and may be read when they have landed."""

from __future__ import annotations

from typing import Self

import torch
from weightwire.deadlines import Deadline
from weightwire.planes import Watch

from weightwire_torch.broadcasting import Flight, all_well
from weightwire_torch.lifeline import Tether
from weightwire_torch.nccl_group import NcclGroup, Transport


class NcclReceiver:
    """A member that receives; see :class:`weightwire_torch.receiver.Receiving`.

    The calling thread waits for each pack by asking, never inside CUDA, so that it hears of the sender's end and of its
    own deadline. What it then queues on its own stream (copies into a model) may still be under way when it asks for
    the next pack, so the wire waits for that, on the device, before it writes again.
    """

    def __init__(self, transport: Transport, unique_id: bytes, *, rank: int, world_size: int) -> None:
        """Make a member that has not joined, and is tied to nobody.

        Args:
            transport: what the bytes travel through.
            unique_id: of the communicator.
            rank: which member, 1 or more.
            world_size: members, all included.
        """
        self._device = transport.device
        self._group = NcclGroup(transport, unique_id, offer=None, world_size=world_size, rank=rank)
        self._tether: Tether | None = None
        self._timeout = 0.0

    @property
    def device(self) -> torch.device:
        """Where the bytes arrive."""
        return self._device.torch_device

    def tie(self, tether: Tether) -> Self:
        """Give up whatever is waited for when the sender is gone."""
        self._tether = tether
        self._group.watch = tether.watch
        return self

    def join(self, timeout: float) -> None:
        """Enter, together with all others.

        Args:
            timeout: seconds for that, and for each pack later.

        Raises:
            DeadlineExceeded: a member did not come.
            ChannelError: NCCL refused a member, or the sender is gone.
        """
        self._timeout = timeout
        watch: Watch = self._tether.watch if self._tether is not None else all_well
        self._group.join(Deadline.after(timeout), watch)

    def begin(self, flat: torch.Tensor) -> Flight:
        """Begin to receive the next broadcast into *flat*, once what the caller has queued so far is done.

        Raises:
            ChannelError, DeadlineExceeded: the group is broken.
        """
        used = self._device.mark_caller()
        return self._group.begin(flat, lambda: self._device.hold_wire(used), Deadline.after(self._timeout))

    def abort(self) -> None:
        """Leave at once. Idempotent, never raises, never blocks."""
        self._group.abort()
        self._untie()

    def close(self) -> None:
        """Leave, and wait a few seconds until that is done. Idempotent, never raises."""
        self._group.close(Deadline.after(self._timeout))
        self._untie()

    def _untie(self) -> None:
        if self._tether is not None:
            self._tether.close()
