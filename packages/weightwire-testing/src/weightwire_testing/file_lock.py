"""One process at a time: a lock on a file, which the system lets go when its holder dies."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from weightwire.deadlines import Deadline

POLL_SECONDS = 0.2


@contextmanager
def holding(path: Path, seconds: float, *, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock at *path*.

    Args:
        path: a file of its own; made, and left where it is.
        seconds: how long to wait for another holder.
        on_wait: called once if there is one.

    Raises:
        DeadlineExceeded: it was still held then.
    """
    deadline = Deadline.after(seconds)
    waiting = False
    with path.open("a") as handle:
        while not _take(handle.fileno()):
            if not waiting:
                on_wait()
            waiting = True
            deadline.check(f"waiting for another process that holds {path}")
            time.sleep(POLL_SECONDS)
        yield


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
