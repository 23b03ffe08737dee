"""A gloo process group beside whatever groups the process already has: no global state is touched.

Rank 0 hosts the key-value store on a socket bound here: torch's own TCPStore listens on every interface, whatever
host it is given. The others announce themselves in the store, and rank 0 waits until all have, before anybody's
gloo connects the full mesh: that step can't be interrupted, and does not say who is missing.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Sequence
from typing import Self
from weakref import WeakSet

import torch
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import ChannelError
from weightwire.planes import Watch

from weightwire_torch import gloo
from weightwire_torch.addresses import LOOPBACK, address_towards
from weightwire_torch.broadcasting import Guard, all_well

_TICK = 0.005  # seconds between two looks at the watch, or at the store, while a member is waited for
_CLOSE_TIME = 5.0  # seconds an orderly close may take
_LEAVING: WeakSet[Call[None]] = WeakSet()  # those under way: nobody but its thread keeps such a call
_JOINED: WeakSet[GlooGroup] = WeakSet()


class GlooGroup:
    """One member of a group. Make it with :meth:`host` or :meth:`connect`, then :meth:`join`."""

    def __init__(self, store: Store, member: gloo.Member, devices: Sequence[gloo.Device]) -> None:
        """Prepare to join; nothing is sent yet.

        Args:
            store: shared by the members.
            member: which of them this one is.
            devices: the network interface and address to use, once for each connection.
        """
        self.rank = member.rank
        self.world_size = member.world_size
        self.timeout = member.timeout
        self.store: Store | None = store
        self.port = int(store.port) if isinstance(store, TCPStore) else 0
        self._member = member
        self._devices = devices
        self._group: gloo.Group | None = None
        self._leaving = threading.Lock()

    @classmethod
    def host(
        cls,
        address: str = "",
        port: int = 0,
        *,
        world_size: int,
        timeout: float,
        interface: str = "",
    ) -> Self:
        """Be rank 0 and listen. Waits for nobody.

        Args:
            address: an address of this machine that the others can reach; empty for loopback.
            port: 0 to let the system choose; :attr:`port` says which.
            world_size: members, this one included.
            timeout: seconds a collective may take.
            interface: the network interface for the data; empty for the one that has *address*.

        Raises:
            ChannelError: the address can't be bound, or there is no such interface.
        """
        member = gloo.Member(rank=0, world_size=world_size, timeout=timeout)
        address = address or LOOPBACK
        devices = gloo.devices(interface, address)
        return cls(gloo.hosted_store(address, port, member), member, devices)

    @classmethod
    def connect(cls, address: str, port: int, *, rank: int, world_size: int, timeout: float) -> Self:
        """Reach the store of rank 0. The data takes the network interface on the route to it.

        Args:
            address: where rank 0 listens.
            port: its port.
            rank: this member's rank, 1 or more.
            world_size: members, all included.
            timeout: seconds to wait for the store, and that a collective may take.

        Raises:
            ChannelError: nothing listens there.
        """
        member = gloo.Member(rank=rank, world_size=world_size, timeout=timeout)
        devices = gloo.devices("", address_towards(address))
        return cls(gloo.reached_store(address, port, member), member, devices)

    def join(self, deadline: Deadline, watch: Watch = all_well) -> None:
        """Enter the group, together with all others.

        Raises:
            DeadlineExceeded: a member did not come; names its rank.
            ChannelError: the members could not be connected to each other, or two have one rank.
            BaseException: what *watch* reports.
        """
        guard = Guard(deadline, watch)
        store, devices = self.store, self._devices
        if store is None:
            raise ChannelError("The group was closed or aborted.")
        keys = PrefixStore(self._member.prefix, store)
        gloo.announce(keys, self._member)
        if self.rank == 0:
            self._await_members(keys, guard)
        entering = Call(
            lambda: gloo.enter(keys, self._member, devices=devices, deadline=deadline),
            doing="connecting the members of the group to each other",
        )
        while not entering.wait(_TICK):
            guard.check(entering.doing)
        self._group = entering.result(deadline)
        _JOINED.add(self)

    def begin(self, flat: torch.Tensor, deadline: Deadline | None = None) -> gloo.Flight:
        """Begin to broadcast from rank 0, into or out of *flat*.

        Args:
            flat: one-dimensional uint8, contiguous, on the CPU; as long on every member.
            deadline: when to give up, where that is earlier than the group's timeout.

        Raises:
            ChannelError: the group is not open.
        """
        until = Deadline.after(self.timeout) if deadline is None else deadline.at_most(self.timeout)
        return gloo.broadcast(self._open_group(), flat, until)

    def broadcast(self, flat: torch.Tensor) -> None:
        """Broadcast from rank 0, into or out of *flat*: :meth:`begin`, and wait.

        Raises:
            DeadlineExceeded: the group's timeout passed.
            ChannelError: a peer is gone, or the group is not open.
        """
        self.begin(flat).land()

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sum *tensor* over the members, in place, and wait.

        Raises:
            DeadlineExceeded: the group's timeout passed.
            ChannelError: a peer is gone, or the group is not open.
        """
        gloo.all_reduce(self._open_group(), tensor, Deadline.after(self.timeout)).land()

    def abort(self) -> None:
        """Leave at once: collectives under way fail, here and at the peers. Idempotent, never raises, never blocks."""
        self._leave()

    def close(self, deadline: Deadline | None = None) -> None:
        """Leave, and wait until sockets and threads are gone, a few seconds at most. Idempotent.

        Args:
            deadline: makes no difference: those few seconds keep a process from being aborted by torch at its end.
        """
        del deadline
        leaving = self._leave()
        if leaving is not None:
            leaving.wait(_CLOSE_TIME)

    def _open_group(self) -> gloo.Group:
        group = self._group
        if group is None:
            raise ChannelError("The group is not open: it was never joined, or it was closed or aborted.")
        return group

    def _await_members(self, keys: Store, guard: Guard) -> None:
        missing = list(range(1, self.world_size))
        while missing := gloo.absent(keys, missing):
            named = ", ".join(map(str, missing))
            guard.check(f"waiting for rank {named} of {self.world_size} to join the group")
            time.sleep(_TICK)

    def _leave(self) -> Call[None] | None:
        with self._leaving:
            remains = gloo.Remains(self._group, devices=self._devices, store=self.store)
            self._group, self._devices, self.store = None, (), None
        if remains.empty:
            return None
        leaving = Call(lambda: remains.bury(self._member), doing="leaving the group")
        _LEAVING.add(leaving)
        return leaving


@atexit.register
def _see_off() -> None:
    """Leave every group, and wait until no thread is inside torch any more, a few seconds at most.

    torch aborts a process whose end cuts off one of its destructors, and so does C++ where a daemon thread comes out of
    one of torch's waits while Python ends: Python up to 3.13 stops such a thread by unwinding it, through frames that
    take no exception ("terminate called without an active exception", exit code 134). Seen with torch 2.11 and 2.13, in
    one of six programs that ended right after an abort.
    """
    deadline = Deadline.after(_CLOSE_TIME)
    for group in list(_JOINED):
        group.abort()
    for leaving in tuple(_LEAVING):
        leaving.wait(deadline.remaining())
    gloo.waits.over(deadline.remaining())
