"""What an error keeps alive: through its traceback every local variable on its way.

Those frames know the error too, so that only a full garbage collection frees them, and with them buffers, sockets and
the threads of a group that was left. That may be many failed rounds later.
"""

from __future__ import annotations

import traceback


def let_go(error: BaseException) -> None:
    """Clear the local variables of the frames that *error* came through; its text, cause and traceback stay.

    Not those of its cause: a weight source's own frames are its author's to look into.
    """
    traceback.clear_frames(error.__traceback__)


def let_go_of_all(error: BaseException) -> None:
    """As :func:`let_go`, and of what led to *error*, one after the other: for a library's errors, all the way down."""
    known: BaseException | None = error
    while known is not None:
        let_go(known)
        known = known.__cause__ or known.__context__
