"""Release numbers: just enough to place an engine in a half-open range."""

from __future__ import annotations

import re

from weightwire.errors import CompatibilityError

_RELEASE = re.compile(r"^v?(\d+(?:\.\d+)*)")


def release(version: str) -> tuple[int, ...]:
    """The release part of *version* as numbers; suffixes such as ``+cpu``, ``rc1`` or ``.dev3`` are dropped.

    Raises:
        CompatibilityError: there is no release number at the front.
    """
    found = _RELEASE.match(version)
    if not found:
        raise CompatibilityError(f"{version!r} is no version: it should begin with numbers, such as 0.32.0.")
    return tuple(int(part) for part in found.group(1).split("."))


def within(version: str, *, since: str, before: str) -> bool:
    """Whether ``since <= version < before``, compared by release numbers."""
    return release(since) <= release(version) < release(before)
