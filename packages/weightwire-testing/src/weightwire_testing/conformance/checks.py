"""Statements of the suites: what was found, what was expected, in words."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

E = TypeVar("E", bound=BaseException)

GRACE = 5.0
"""Seconds beyond a deadline that a busy machine may need."""


def expect(found: object, expected: object, what: str) -> None:
    """Raise unless they are equal.

    Raises:
        AssertionError: they differ.
    """
    if found != expected:
        raise AssertionError(f"{what}: expected {expected!r}, found {found!r}")


def expect_true(found: object, what: str) -> None:
    """Raise unless *found* is true.

    Raises:
        AssertionError: it is not.
    """
    if not found:
        raise AssertionError(what)


def expect_raises(kinds: type[E] | tuple[type[E], ...], work: Callable[[], object], what: str) -> E:
    """Return the error that *work* raises.

    Raises:
        AssertionError: it raises none, or another.
    """
    named = kinds if isinstance(kinds, tuple) else (kinds,)
    words = " or ".join(kind.__name__ for kind in named)
    try:
        work()
    except named as error:
        return error
    except Exception as error:
        raise AssertionError(f"{what}: expected {words}, found {error!r}") from error
    raise AssertionError(f"{what}: expected {words}, and nothing was raised")


@contextmanager
def within(seconds: float, what: str) -> Iterator[None]:
    """Raise if the block takes longer than *seconds* and the grace of a busy machine.

    Raises:
        AssertionError: it does.
    """
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    if took > seconds + GRACE:
        raise AssertionError(f"{what}: took {took:.1f} s, where {seconds:g} s were allowed")
