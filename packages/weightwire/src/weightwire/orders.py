"""What a push is asked to do, checked before anything is touched."""

from __future__ import annotations

import operator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import SupportsIndex, TypeVar

from weightwire.errors import ConfigurationError
from weightwire.messages import CachePolicy, PauseMode
from weightwire.states import MARK

LONGEST_VERSION = 200
"""Characters of a version: it travels in queries and stands in the engines' answers and logs."""

_HUGE = 10**LONGEST_VERSION
_EXAMPLE = "session.push(version=step), or a text such as 'step-1200'"

E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True)
class Order:
    """What a push was asked to do."""

    version: str
    pause: PauseMode
    cache: CachePolicy

    @classmethod
    def of(cls, version: object, *, pause: object, cache: object) -> Order:
        """Check what was given.

        Raises:
            ConfigurationError: the version is none, or there is no such choice.
        """
        return cls(_version(version), _choice(PauseMode, pause, "pause"), _choice(CachePolicy, cache, "cache"))


def _version(version: object) -> str:
    if isinstance(version, str):
        text = version
    else:
        number = _whole(version)
        text = str(number) if abs(number) < _HUGE else f"{number:#b}"  # Python refuses to write out the largest
    why = _unfit(text)
    if why:
        raise ConfigurationError(
            f"The version {text[:40]!a} can't be taken: {why}. A version is a whole number or a text of 1 to "
            f"{LONGEST_VERSION} printable characters.",
            hint=_EXAMPLE,
        )
    return text


def _whole(version: object) -> int:
    """A whole number, of Python's own kind or of numpy's; not True and False, which are ones too."""
    if not isinstance(version, bool) and isinstance(version, SupportsIndex):
        with suppress(TypeError):  # some that could be one have a fraction
            return operator.index(version)
    raise ConfigurationError(
        f"The version is a {type(version).__name__}; a whole number or a text is expected.", hint=_EXAMPLE
    )


def _unfit(text: str) -> str:
    """Why no engine should be told to hold this version; empty for nothing."""
    if not text:
        return "it is empty"
    if len(text) > LONGEST_VERSION:
        return f"it is longer than {LONGEST_VERSION} characters"
    if text != text.strip() or not text.isprintable():
        return "it begins or ends with a space, or holds a line end, a control character or half a character"
    if text.startswith(MARK):
        return f"{MARK!r} begins the marks of engines that must not serve"
    return ""


def _choice(kind: type[E], given: object, name: str) -> E:
    if isinstance(given, str) and given in set(kind):
        return kind(given)
    known = " or ".join(repr(str(one)) for one in kind)
    raise ConfigurationError(f"{name}={given!r} is no choice; there are {known}.", hint=f"write {name}={known}")
