"""Daemon threads that are used again: to start one takes longer than most calls to an engine.

``concurrent.futures`` is not used: its worker threads are joined when the interpreter exits, so that a call to a
wedged engine would keep a finished trainer alive for ever. And there is no size to be chosen here: no work ever waits
for another's thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

Work = Callable[[], None]
"""What a thread shall do; it never raises."""

IDLE_SECONDS = 1.0
"""How long a thread waits for more work before it ends: long between two calls of a round, short between two rounds."""


class Threads:
    """As many threads as there is work at one time, and those that wait for more."""

    def __init__(self) -> None:
        """Start none yet."""
        self.forget()

    def forget(self) -> None:
        """Begin anew: a forked child has none of its parent's threads, and a lock that one of them may have held."""
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []

    def run(self, work: Work, *, name: str) -> None:
        """Do *work* at once, on a thread that bears *name* meanwhile."""
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        (worker or _Worker(self)).take(work, name)

    def enter(self, worker: _Worker) -> None:
        """A thread has nothing to do; the last that came is the first to go."""
        with self._lock:
            self._idle.append(worker)

    def leave(self, worker: _Worker) -> bool:
        """Whether a thread may end: False when it was given work in the last moment."""
        with self._lock:
            idle = worker in self._idle
            if idle:
                self._idle.remove(worker)
        return idle


class _Worker:
    def __init__(self, owner: Threads) -> None:
        self._owner = owner
        self._inbox: SimpleQueue[tuple[Work, str]] = SimpleQueue()
        threading.Thread(target=self._run, name="weightwire: idle", daemon=True).start()

    def take(self, work: Work, name: str) -> None:
        self._inbox.put((work, name))

    def _run(self) -> None:
        thread = threading.current_thread()
        while (given := self._next()) is not None:
            work, thread.name = given
            work()
            del given, work  # what it worked with is not held while the thread is idle
            thread.name = "weightwire: idle"
            self._owner.enter(self)

    def _next(self) -> tuple[Work, str] | None:
        try:
            return self._inbox.get(timeout=IDLE_SECONDS)
        except Empty:
            return None if self._owner.leave(self) else self._inbox.get()


shared = Threads()
"""Those of this process."""

if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=shared.forget)
