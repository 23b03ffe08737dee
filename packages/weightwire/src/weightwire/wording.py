"""Phrases that several error messages share."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

_SHOWN = 3


def some(names: Sequence[str]) -> str:
    """The first few of *names*, and how many more there are: ``a, b, c and 14 more``."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def closest(word: str, known: Collection[str]) -> str:
    """The one of *known* that *word* was probably meant to be; empty where none is like it."""
    return next(iter(difflib.get_close_matches(word, known, n=1)), "")
