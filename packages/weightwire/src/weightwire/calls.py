"""Watched calls: a blocking call on another thread, whose waiter always meets its deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from weightwire import threads
from weightwire.deadlines import Deadline

T = TypeVar("T")


class Call(Generic[T]):
    """A call in flight."""

    def __init__(self, work: Callable[[], T], *, doing: str) -> None:
        """Start *work* at once on a daemon thread that does nothing else meanwhile.

        Args:
            work: the blocking call.
            doing: what it does, as it should read after "while" in a deadline's message.
        """
        self.doing = doing
        self._finished = threading.Event()
        self._error: BaseException | None = None
        self._value: list[T] = []
        # The work is the thread's alone, and let go when it ends: calls are remembered for long.
        threads.shared.run(partial(self._run, work), name=f"weightwire: {doing}")

    def _run(self, work: Callable[[], T]) -> None:
        finished = self._finished
        try:
            self._value.append(work())
        except BaseException as error:  # noqa: BLE001 - handed to the waiter, whoever that is
            self._error = error
        finally:
            del self, work  # the error knows this frame, and must not know itself through it
            finished.set()

    @property
    def done(self) -> bool:
        """Whether it returned or raised."""
        return self._finished.is_set()

    def failure(self) -> BaseException | None:
        """What it raised so far; None while it runs and after it succeeded. Never blocks."""
        return self._error if self.done else None

    def wait(self, seconds: float) -> bool:
        """Wait a little; whether it is done."""
        return self._finished.wait(seconds)

    def result(self, deadline: Deadline) -> T:
        """Wait for the value.

        Raises:
            DeadlineExceeded: it is still running at the deadline; it goes on in the background, unwatched.
        """
        if not self._finished.wait(deadline.remaining()):
            raise deadline.exceeded(self.doing)
        if self._error is None:
            return self._value[0]
        try:
            raise self._error
        finally:
            del self  # as in _run
