"""One thread at a time: what keeps two threads from being in calls of one session together."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from weightwire.errors import StateError
from weightwire.tracebacks import let_go

P = ParamSpec("P")
R = TypeVar("R")


class Turns:
    """Whose turn it is. The thread that has it may call again from within.

    Attributes:
        process: the process they were made in.
    """

    def __init__(self) -> None:
        """It is nobody's."""
        self.process = os.getpid()
        self._lock = threading.RLock()
        self._doing = ""

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one, :attr:`process`, that they were made in."""
        return self.process != os.getpid()

    @contextmanager
    def taken(self, doing: str) -> Iterator[None]:
        """Have the turn, for what is called *doing* in the message to a thread that comes meanwhile.

        Raises:
            StateError: another thread has it. Nothing was touched.
        """
        if self.forked:  # a fork has this thread alone, whoever had the turn
            yield
            return
        if not self._lock.acquire(blocking=False):
            raise StateError(
                f"Another thread is in {self._doing or 'a call'} of this session; a session is for one thread at a "
                f"time, and this {doing} did nothing.",
                hint="make all calls from one thread, or hold a lock around them; push(wait=False) returns early",
            )
        outer, self._doing = self._doing, doing
        try:
            yield
        finally:
            self._doing = outer
            self._lock.release()


class TakesTurns(Protocol):
    """What has methods for one thread at a time."""

    turns: Turns


S = TypeVar("S", bound=TakesTurns)


def in_turn(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Let only one thread into this method, and into all others of the object that are marked so."""

    @wraps(method)
    def alone(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.turns.taken(f"{method.__name__}()"):
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                let_go(error)
                raise

    return alone
