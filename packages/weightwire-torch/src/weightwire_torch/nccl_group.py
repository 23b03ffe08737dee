"""A membership in the group: how it is met, joined, sent to or received from, and left."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch
from weightwire.deadlines import Deadline
from weightwire.errors import ChannelError, DeadlineExceeded
from weightwire.planes import Watch

from weightwire_torch.broadcasting import Guard, Ready, all_well
from weightwire_torch.lifeline import Lifeline
from weightwire_torch.listening import Place
from weightwire_torch.nccl_communicator import Communicator, Nccl, wait_until
from weightwire_torch.nccl_device import Device, Mark
from weightwire_torch.nccl_rendezvous import meeting_point
from weightwire_torch.nccl_store import Offer


@dataclass(frozen=True, slots=True)
class Transport:
    """What the bytes travel through.

    Attributes:
        nccl: the library.
        device: the GPU.
    """

    nccl: Nccl
    device: Device


class Flight:
    """A broadcast under way."""

    def __init__(self, communicator: Communicator, mark: Mark, *, nbytes: int, guard: Guard) -> None:
        """Watch over what ends at *mark*."""
        self._communicator = communicator
        self._mark = mark
        self._nbytes = nbytes
        self._guard = guard

    def land(self) -> None:
        """Wait for the end.

        Raises:
            DeadlineExceeded: the deadline passed.
            ChannelError: the communicator broke or was aborted, or the GPU failed.
            BaseException: what the group's watch reports.
        """
        _pass(self._mark, self._communicator, guard=self._guard, doing=f"broadcasting {self._nbytes} bytes over NCCL")


class NcclGroup:
    """A member. Rank 0 makes it with :meth:`host`; then :meth:`join`.

    Attributes:
        watch: what may end a broadcast besides its deadline; a worker of ours watches the sender.
        lifeline: what our workers hold on to; cut when this member leaves.
    """

    def __init__(
        self, transport: Transport, unique_id: bytes, *, offer: Offer | None, world_size: int, rank: int = 0
    ) -> None:
        """Own what was prepared; nobody is waited for.

        Args:
            transport: what the bytes travel through.
            unique_id: of the communicator.
            offer: where the workers find the id; None where the control plane hands it to them.
            world_size: members, this one included.
            rank: which of them this one is; 0 is the sender.
        """
        self.unique_id = unique_id
        self.world_size = world_size
        self.rank = rank
        self.watch: Watch = all_well
        self.lifeline: Lifeline | None = None
        self._transport = transport
        self._offer = offer
        self._communicator: Communicator | None = None
        self._leaving = threading.Lock()
        self._left = False
        self._joined = False

    @classmethod
    def host(cls, transport: Transport, place: Place | None, *, world_size: int, timeout: float) -> NcclGroup:
        """Make an id, and offer it to the workers.

        Args:
            transport: what the bytes travel through.
            place: where to offer it; None where the control plane hands it over.
            world_size: members, this one included.
            timeout: seconds a worker may take.

        Raises:
            ChannelError: NCCL finds no network, or the place can't be bound.
        """
        unique_id = transport.nccl.unique_id()
        offer = None if place is None else Offer(place, unique_id, world_size=world_size, timeout=timeout)
        return cls(transport, unique_id, offer=offer, world_size=world_size)

    @property
    def port(self) -> int:
        """Where the workers find the id; 0 where there is no such place."""
        return self._offer.port if self._offer is not None else 0

    def join(self, deadline: Deadline, watch: Watch = all_well) -> None:
        """Enter, together with all members, and sum one float with them as vLLM's own sender does.

        Raises:
            DeadlineExceeded: a member did not come.
            ChannelError: NCCL refused a member.
            BaseException: what *watch* reports.
        """
        guard = Guard(deadline, watch)
        try:
            self._enter(guard)
            self._warm_up(guard)
        except DeadlineExceeded as late:
            late.hint = self._why_late()
            raise
        self._joined = True
        if self._offer is not None:
            self._offer.withdraw()

    def begin(self, flat: torch.Tensor, ready: Ready, deadline: Deadline) -> Flight:
        """Begin to broadcast from rank 0, into or out of *flat*.

        Args:
            flat: one-dimensional uint8, contiguous, on the device of this group; as long on every member.
            ready: makes the wire wait for the bytes, or until they may be overwritten.
            deadline: when to give up.

        Raises:
            DeadlineExceeded: the kernel could not be queued in time: the first one waits for its receivers.
            ChannelError: the group is not open, or broke.
        """
        communicator, device = self._opened(), self._transport.device
        guard = Guard(deadline, self.watch)
        with device.here():
            ready()
            device.keep(flat)
            communicator.broadcast(flat.data_ptr(), flat.numel(), stream=device.wire)
            communicator.settle(guard, "queueing a broadcast")
            return Flight(communicator, device.mark_wire(), nbytes=flat.numel(), guard=guard)

    def abort(self) -> None:
        """Leave at once: what is under way ends. Any thread; idempotent, never raises, never blocks."""
        communicator = self._leave()
        if communicator is not None:
            communicator.abort()

    def close(self, deadline: Deadline) -> None:
        """Leave in order, within a few seconds, or at once where not all have come. Idempotent, never raises."""
        communicator = self._leave()
        if communicator is not None and self._joined:
            with self._transport.device.here():
                communicator.close(deadline)
        elif communicator is not None:
            communicator.abort()

    def _enter(self, guard: Guard) -> None:
        with self._transport.device.here():
            entering = Communicator.enter(
                self._transport.nccl, self.unique_id, rank=self.rank, world_size=self.world_size
            )
        with self._leaving:
            self._communicator, left = entering, self._left
        if left:
            entering.abort()
        entering.settle(guard, f"waiting for the other {self.world_size - 1} members to join the NCCL group")

    def _warm_up(self, guard: Guard) -> None:
        communicator, device = self._opened(), self._transport.device
        doing = "summing one float with all members"
        with device.here():
            one = torch.zeros(1, dtype=torch.float32, device=device.torch_device)
            device.hold_wire(device.mark_caller())
            device.keep(one)
            communicator.add_up(one.data_ptr(), device.wire)
            communicator.settle(guard, doing)
            mark = device.mark_wire()
        _pass(mark, communicator, guard=guard, doing=doing)

    def _why_late(self) -> str:
        return (
            f"NCCL told the members to meet at {meeting_point(self.unique_id)}: if they can't reach that, set "
            "NCCL_SOCKET_IFNAME on both sides to the interface that connects them; two releases of NCCL never meet "
            f"(this is {self._transport.nccl.version}); NCCL_DEBUG=WARN on both sides tells more"
        )

    def _opened(self) -> Communicator:
        communicator = self._communicator
        if communicator is None:
            raise ChannelError("The group is not open: it was never joined, or it was closed or aborted.")
        return communicator

    def _leave(self) -> Communicator | None:
        with self._leaving:
            communicator, self._communicator, self._left = self._communicator, None, True
        if self._offer is not None:
            self._offer.withdraw()
        if self.lifeline is not None:
            self.lifeline.cut()
        return communicator


def _pass(mark: Mark, communicator: Communicator, *, guard: Guard, doing: str) -> None:
    """Wait until the wire has passed *mark*, with all members still there."""

    def check() -> None:
        communicator.check(doing)
        guard.check(doing)

    wait_until(mark.passed, check)
    communicator.check(doing)  # a kernel that was aborted ends too, and its mark is passed like any other
