"""The states of a session and of an engine, and which changes are legal."""

from __future__ import annotations

from enum import StrEnum

from weightwire.errors import StateError

MARK = "weightwire:"
"""What an engine's weight version begins with while a round may tear it, and after one did."""

RECOVERED = f"{MARK}recovered"
"""What it says once :func:`weightwire.recover` has closed what that round left open: it is torn, and can be mended."""


class SessionState(StrEnum):
    """What a session may do next.

    ``NEW → CONNECTED → READY → UPDATING → READY``; ``BROKEN`` when the channel is gone (the next push recovers
    first); ``CLOSED`` for good.
    """

    NEW = "new"
    CONNECTED = "connected"
    READY = "ready"
    UPDATING = "updating"
    BROKEN = "broken"
    CLOSED = "closed"


class EngineState(StrEnum):
    """What an engine holds; kept apart from the session's state."""

    WHOLE = "whole"
    """Exactly one committed version."""
    TORN = "torn"
    """A mix of versions; it must not serve, and only a full push mends it."""
    LOST = "lost"
    """It needs a restart."""


_LEGAL: dict[SessionState, frozenset[SessionState]] = {
    SessionState.NEW: frozenset({SessionState.CONNECTED, SessionState.CLOSED}),
    SessionState.CONNECTED: frozenset({SessionState.READY, SessionState.BROKEN, SessionState.CLOSED}),
    SessionState.READY: frozenset({SessionState.UPDATING, SessionState.BROKEN, SessionState.CLOSED}),
    SessionState.UPDATING: frozenset({SessionState.READY, SessionState.BROKEN, SessionState.CLOSED}),
    SessionState.BROKEN: frozenset({SessionState.CONNECTED, SessionState.READY, SessionState.CLOSED}),
    SessionState.CLOSED: frozenset(),
}


def advance(current: SessionState, to: SessionState) -> SessionState:
    """Return *to* if it may follow *current*.

    Raises:
        StateError: the change is not legal.
    """
    if to not in _LEGAL[current]:
        allowed = ", ".join(sorted(_LEGAL[current])) or "nothing"
        raise StateError(
            f"A session that is {current} can't become {to}; after {current} comes {allowed}.",
            hint="open a new session with weightwire.connect()" if current is SessionState.CLOSED else "",
        )
    return to


def worst(states: list[EngineState]) -> EngineState:
    """The state of a set of engines: the worst of its members; whole when there are none."""
    order = [EngineState.LOST, EngineState.TORN, EngineState.WHOLE]
    return next((state for state in order if state in states), EngineState.WHOLE)
