"""One membership in an NCCL communicator that never blocks its caller and can be left at any moment.

NCCL frees a communicator's memory when it is aborted, so that a call which comes late would read freed memory. Here
every call goes through one lock, and none after :meth:`Communicator.abort`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import ChannelError, WeightwireError

from weightwire_torch.broadcasting import Guard, all_well
from weightwire_torch.nccl_errors import Result, failed

Check = Callable[[], None]
"""Raises when a wait must end before what is waited for has happened."""

_SHORTEST_NAP = 0.00002  # seconds
_LONGEST_NAP = 0.0005
_NAPS_IN_A_WAIT = 16  # a nap is this part of what was waited so far: a wait is at most 6 % late
_ORDERLY = 3.0  # seconds that the last collective, and then leaving, may take


class Nccl(Protocol):
    """What is asked of :class:`~weightwire_torch.nccl_library.NcclLibrary`; a stand-in takes its place in tests."""

    @property
    def version(self) -> str:
        """Its release."""

    def unique_id(self) -> bytes:
        """Make the id of a new communicator."""

    def enter(self, unique_id: bytes, *, rank: int, world_size: int) -> int:
        """Begin to join, and return a handle."""

    def state(self, handle: int) -> int:
        """How a communicator stands."""

    def add_up(self, handle: int, pointer: int, *, stream: int) -> None:
        """Begin to sum one float32."""

    def broadcast(self, handle: int, pointer: int, *, nbytes: int, stream: int) -> None:
        """Begin to broadcast bytes of rank 0."""

    def abort(self, handle: int) -> None:
        """Leave at once."""

    def words(self, result: int) -> str:
        """The name of a result."""

    def last_words(self) -> str:
        """The last warning."""


def wait_until(done: Callable[[], bool], check: Check) -> None:
    """Poll until *done*, with *check* between two looks.

    Nothing here sleeps in CUDA or NCCL: a wait there can't be ended from outside.
    """
    began = time.monotonic()
    while not done():
        check()
        waited = time.monotonic() - began
        time.sleep(min(max(waited / _NAPS_IN_A_WAIT, _SHORTEST_NAP), _LONGEST_NAP))


class Communicator:
    """A member; made by :meth:`enter`."""

    def __init__(self, nccl: Nccl, handle: int) -> None:
        """Own *handle*."""
        self._nccl = nccl
        self._handle: int | None = handle
        self._lock = threading.Lock()

    @classmethod
    def enter(cls, nccl: Nccl, unique_id: bytes, *, rank: int, world_size: int) -> Communicator:
        """Begin to join on the calling thread's CUDA device; :meth:`settle` says when all members have.

        Raises:
            ChannelError: it can't even begin.
        """
        return cls(nccl, nccl.enter(unique_id, rank=rank, world_size=world_size))

    def settle(self, guard: Guard, doing: str) -> None:
        """Wait until the last call is done: joined, or its kernel is on its stream. No other call may come before.

        Raises:
            ChannelError: the communicator broke, or was aborted.
            DeadlineExceeded: the deadline passed.
            BaseException: what the watch reports.
        """
        wait_until(lambda: self._settled(doing), lambda: guard.check(doing))

    def add_up(self, pointer: int, stream: int) -> None:
        """Begin to sum one float32 over all members; :meth:`settle` comes next."""
        with self._lock:
            self._nccl.add_up(self._open(), pointer, stream=stream)

    def broadcast(self, pointer: int, nbytes: int, *, stream: int) -> None:
        """Begin to broadcast bytes of rank 0, into or out of *pointer*; :meth:`settle` comes next.

        Raises:
            ChannelError: the communicator is broken, or was aborted.
        """
        with self._lock:
            self._nccl.broadcast(self._open(), pointer, nbytes=nbytes, stream=stream)

    def check(self, doing: str) -> None:
        """Raise if it broke or was aborted, whatever is under way.

        Raises:
            ChannelError: it did.
        """
        self._settled(doing)

    def abort(self) -> Call[None] | None:
        """Leave at once; what is under way ends. Any thread; returns at once, None where there is nothing to leave."""
        handle = self._give_up()
        if handle is None:
            return None
        return Call(lambda: self._nccl.abort(handle), doing="aborting the NCCL communicator")

    def close(self, deadline: Deadline) -> None:
        """Leave, once the last collective is done, within a few seconds. Never raises; idempotent.

        Always by abort, as vLLM leaves from 0.32 on: ncclCommFinalize and ncclCommDestroy wait until the workers leave
        too, which a stock server up to 0.31 never does (seen with 0.26.0 and NCCL 2.28.9: neither returned in 150 s).
        """
        with suppress(WeightwireError):
            self.settle(Guard(deadline.at_most(_ORDERLY), all_well), "waiting for the last collective")
        leaving = self.abort()
        if leaving is not None:
            leaving.wait(deadline.at_most(_ORDERLY).remaining())

    def _settled(self, doing: str) -> bool:
        with self._lock:
            state = self._nccl.state(self._open())
        if state not in {Result.SUCCESS, Result.IN_PROGRESS}:
            raise failed(doing, self._nccl.words(state), last=self._nccl.last_words())
        return state == Result.SUCCESS

    def _open(self) -> int:
        if self._handle is None:
            raise ChannelError("The NCCL communicator was closed or aborted.", hint="call session.recover()")
        return self._handle

    def _give_up(self) -> int | None:
        with self._lock:
            handle, self._handle = self._handle, None
        return handle
