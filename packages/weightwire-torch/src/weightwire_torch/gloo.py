"""The few things we ask of torch's gloo and of its store, each with its errors in our own words."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore
from weightwire.deadlines import Deadline
from weightwire.errors import ChannelError, WeightwireError

CONNECTIONS = 3
"""Connections between two members. One leaves both ends waiting for each other in turn (seen on loopback, 2 cores)."""

CHUNK_BYTES = 16 * 1024 * 1024
"""A broadcast goes in pieces of this size, round robin over the connections; the same on every member."""

Group = dist.ProcessGroupGloo
Device = dist.ProcessGroupGloo.Device

_LATE = 0.05  # seconds before its deadline from which a failed wait counts as late: gloo's clock is not ours
_SHORTEST = 0.001  # seconds; torch takes a timeout of zero for "none"
_UNUSED_TAGS = range(CONNECTIONS)  # of point-to-point messages, of which the group has none: one a connection


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group.

    Attributes:
        rank: which one; 0 is the sender.
        world_size: of how many.
        timeout: seconds a collective may take.
        prefix: of the group's keys in the store.
    """

    rank: int
    world_size: int
    timeout: float
    prefix: str = "weightwire"


class Waits:
    """Counts the threads that are inside one of torch's waits."""

    def __init__(self) -> None:
        """None is."""
        self._inside = 0
        self._news = threading.Condition()

    def __enter__(self) -> None:
        """Go in."""
        with self._news:
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        """Come out."""
        with self._news:
            self._inside -= 1
            self._news.notify_all()

    def over(self, seconds: float) -> bool:
        """Wait until no thread is; whether none is after so many seconds."""
        with self._news:
            return self._news.wait_for(lambda: self._inside == 0, seconds)


waits = Waits()
"""Of this process."""


class Flight:
    """A collective under way."""

    def __init__(self, pieces: Sequence[dist.Work], nbytes: int, deadline: Deadline) -> None:
        """Watch over *pieces*."""
        self._pieces = pieces
        self._nbytes = nbytes
        self._deadline = deadline

    def land(self) -> None:
        """Wait for the end.

        Raises:
            DeadlineExceeded: the deadline passed.
            ChannelError: a peer is gone, or the group was aborted.
        """
        try:
            with waits:
                for piece in self._pieces:
                    piece.wait(_duration(self._deadline.remaining()))
        except RuntimeError as error:
            raise _explained(error, f"moving {self._nbytes} bytes over gloo", self._deadline) from error


class Remains:
    """What a member holds in a group that it leaves."""

    def __init__(self, group: Group | None, *, devices: Sequence[Device], store: Store | None) -> None:
        """Take over; the giver keeps no reference."""
        self._group = group
        self._devices = devices
        self._store = store

    @property
    def empty(self) -> bool:
        """Whether there is nothing left to leave."""
        return self._group is None and not self._devices and self._store is None

    def bury(self, member: Member) -> None:
        """Break the connections, then let go. Blocks while torch joins its threads: not for a caller's thread."""
        if self._group is not None:
            _break_connections(self._group, member)
        self._group = None
        self._devices = ()
        self._store = None


def devices(interface: str, address: str) -> tuple[Device, ...]:
    """A gloo device for each connection, on *interface*, or on the one that has *address* where none is named.

    Raises:
        ChannelError: there is none.
    """
    try:
        if interface:
            return tuple(Group.create_device(interface=interface) for _ in range(CONNECTIONS))
        return tuple(Group.create_device(hostname=address) for _ in range(CONNECTIONS))
    except RuntimeError as error:
        raise ChannelError(
            f"gloo can't use {f'the interface {interface!r}' if interface else f'the address {address!r}'}: {error}",
            hint="set the option `interface`; `ip link` (macOS: `ifconfig -l`) lists the names",
        ) from error


def hosted_store(address: str, port: int, member: Member) -> TCPStore:
    """A store that listens on *address* alone, and waits for nobody.

    Raises:
        ChannelError: the address can't be bound.
    """
    listener = _listener(address, port)
    chosen = listener.getsockname()[1]
    try:
        return TCPStore(
            address,
            chosen,
            member.world_size,
            is_master=True,
            timeout=_duration(member.timeout),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
            use_libuv=False,  # libuv's server takes no socket that is already bound (torch 2.10 to 2.13)
        )
    except RuntimeError as error:
        raise ChannelError(f"torch can't serve a store at {address}:{chosen}: {error}") from error


def reached_store(address: str, port: int, member: Member) -> TCPStore:
    """The store that rank 0 hosts.

    Raises:
        ChannelError: nothing listens there.
    """
    try:
        return TCPStore(
            address,
            port,
            member.world_size,
            is_master=False,
            timeout=_duration(member.timeout),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        raise ChannelError(
            f"Rank {member.rank} can't reach the sender's store at {address}:{port}: {error}",
            hint="the trainer's option `advertise` must be an address that this machine can reach",
        ) from error


def announce(keys: Store, member: Member) -> None:
    """Say in the store that this member has come.

    Raises:
        ChannelError: another one has the same rank, or the store is gone.
    """
    try:
        already = keys.add(f"here/{member.rank}", 1) > 1
    except RuntimeError as error:
        raise _lost_store(error) from error
    if already:
        raise ChannelError(
            f"Two members of the group say that they are rank {member.rank}.",
            hint="every engine needs a rank offset of its own, and a worker joins a channel once",
        )


def absent(keys: Store, ranks: list[int]) -> list[int]:
    """Which of *ranks* have not announced themselves yet.

    Raises:
        ChannelError: the store is gone.
    """
    try:
        return [rank for rank in ranks if not keys.check([f"here/{rank}"])]
    except RuntimeError as error:
        raise _lost_store(error) from error


def enter(keys: Store, member: Member, *, devices: Sequence[Device], deadline: Deadline) -> Group:
    """Connect to every other member. Blocks until they do, or the deadline passes.

    Raises:
        DeadlineExceeded: likewise.
        ChannelError: a connection could not be made.
    """
    options = Group._Options()  # type: ignore[attr-defined] # noqa: SLF001 - the only ones that the constructor takes
    options._timeout = _duration(deadline.remaining())  # noqa: SLF001
    options._devices = list(devices)  # noqa: SLF001
    options._threads = len(devices)  # noqa: SLF001
    try:
        return Group(keys, member.rank, member.world_size, options)
    except RuntimeError as error:
        raise _explained(error, "connecting the members of the group to each other", deadline) from error


def broadcast(group: Group, flat: torch.Tensor, deadline: Deadline) -> Flight:
    """Begin to broadcast from rank 0.

    Raises:
        DeadlineExceeded: the deadline has passed.
        ChannelError: the group is broken.
    """
    options = dist.BroadcastOptions()
    options.rootRank = 0
    options.rootTensor = 0
    options.timeout = _duration(deadline.remaining())
    try:
        pieces = [untyped(group).broadcast([chunk], options) for chunk in torch.split(flat, CHUNK_BYTES)]
    except RuntimeError as error:
        raise _explained(error, "beginning a broadcast over gloo", deadline) from error
    return Flight(pieces, flat.numel(), deadline)


def all_reduce(group: Group, tensor: torch.Tensor, deadline: Deadline) -> Flight:
    """Begin to sum *tensor* over the members, in place.

    Raises:
        DeadlineExceeded: the deadline has passed.
        ChannelError: the group is broken.
    """
    try:
        return Flight([untyped(group).allreduce([tensor])], tensor.nbytes, deadline)
    except RuntimeError as error:
        raise _explained(error, "beginning a sum over gloo", deadline) from error


def _break_connections(group: Group, member: Member) -> None:
    """Make every collective under way fail, at the peers too.

    gloo has no abort (torch's ``abort()`` and ``shutdown()`` leave a collective in flight where it is; seen with
    2.11 and 2.13). But a wait that runs out of time closes all connections of the group, so one is made to: for a
    message that nobody sends. From a peer that is already gone it fails at once and closes nothing else: so ask all.
    """
    nothing = torch.empty(1, dtype=torch.uint8)
    for peer in range(member.world_size):
        if peer != member.rank:
            for tag in _UNUSED_TAGS:
                with contextlib.suppress(RuntimeError):  # as meant
                    untyped(group).recv([nothing], peer, tag).wait(_duration(_SHORTEST))


def untyped(group: Group) -> Any:
    """Torch's stubs leave out the methods of a single backend."""
    return group


def _listener(address: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((address, port), family=family)
    except OSError as error:
        raise ChannelError(
            f"Can't listen on {address}:{port}: {error}.",
            hint="the option `advertise` must be an address of this machine, and `port` free (0 chooses one)",
        ) from error


def _duration(seconds: float) -> timedelta:
    return timedelta(seconds=max(seconds, _SHORTEST))


_OWN_ADVICE = re.compile(r"\s*(?:This is typically caused by|GLHF|Check the logs of).*", re.DOTALL)
"""What gloo adds to an error, about other workers' logs; our hint says which."""


def _explained(error: RuntimeError, doing: str, deadline: Deadline) -> WeightwireError:
    if deadline.remaining() < _LATE:
        return deadline.exceeded(doing)
    return ChannelError(
        f"The group broke while {doing}: {_OWN_ADVICE.sub('', str(error)).strip()}",
        hint="look at the engine's log: a worker that fails or dies, or that another session takes into a group of its "
        "own, closes its connections",
    )


def _lost_store(error: RuntimeError) -> ChannelError:
    return ChannelError(f"The group's store does not answer: {error}", hint="look at the trainer's log (rank 0)")
