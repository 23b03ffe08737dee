"""HTTP headers that are sent with every call: which can be sent at all. Their values are never printed."""

from __future__ import annotations

import re
from collections.abc import Mapping

from weightwire.errors import ConfigurationError

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
_OURS = frozenset({"content-length", "content-type", "transfer-encoding", "connection"})


def check(headers: Mapping[str, str], where: str) -> None:
    """Refuse headers that can't be sent, or that would not leave a call whole.

    Args:
        headers: values by name.
        where: where they were found, as it reads in a sentence.

    Raises:
        ConfigurationError: which it is, by its name where that is one, and why.
    """
    for number, (name, value) in enumerate(headers.items(), start=1):
        if not _NAME.fullmatch(name):
            why = "its name holds what no name of a header holds (letters, digits and - are fine)"
            raise _wrong(f"header {number}", where, why)
        if not _VALUE.fullmatch(value):
            raise _wrong(name, where, "its value holds a line end, a control character, or one beyond latin-1")
        if value != value.strip():
            raise _wrong(name, where, "its value begins or ends with a space")
        if name.lower() in _OURS:
            raise _wrong(name, where, "every call sets it by itself")


def _wrong(which: str, where: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"The value of {where} is wrong: {which} can't be sent, because {why}; it is not shown, it may hold a secret.",
        hint="write it anew; what is read from a file often has a line end behind it, which .strip() takes off",
    )
