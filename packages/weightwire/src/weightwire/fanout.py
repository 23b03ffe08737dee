"""The same call to every engine at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from weightwire.calls import Call
from weightwire.deadlines import Deadline

E = TypeVar("E")
T = TypeVar("T")


def everywhere(engines: Sequence[E], work: Callable[[E], T], *, doing: str, deadline: Deadline) -> list[T]:
    """Call *work* with each engine, all at the same time, and wait for all of them.

    Returns:
        The values, in the order of *engines*.

    Raises:
        BaseException: the first engine's that failed, in their order, after all have ended; what the others raised
            is noted on it.
    """
    return wait_for_all([Call(_bound(work, engine), doing=doing) for engine in engines], deadline)


def wait_for_all(calls: Sequence[Call[T]], deadline: Deadline) -> list[T]:
    """Wait for every call, then raise the first error with the others noted on it, or return the values."""
    errors: list[BaseException] = []
    values: list[T] = []
    for call in calls:
        try:
            values.append(call.result(deadline))
        except Exception as error:  # noqa: BLE001 - collected, and the first is raised below
            errors.append(error)
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"another engine: {other}")
        raise errors[0]
    return values


def first_failure(calls: Sequence[Call[T]]) -> BaseException | None:
    """What any of *calls* raised so far; never blocks."""
    return next((error for call in calls if (error := call.failure()) is not None), None)


def _bound(work: Callable[[E], T], engine: E) -> Callable[[], T]:
    return lambda: work(engine)
