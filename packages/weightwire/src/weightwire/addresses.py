"""Addresses of engines: what is one, which spellings mean the same server, and how to show one without its password."""

from __future__ import annotations

import ipaddress
import posixpath
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import cast
from urllib.parse import urlsplit

from weightwire.errors import ConfigurationError

_EXAMPLE = "http://127.0.0.1:8000"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_NEVER: tuple[tuple[re.Pattern[str], tuple[str, str]], ...] = (
    (
        re.compile(r"[\s\x00-\x1f\x7f-\x9f\ud800-\udfff]"),
        ("there is a space, a line end or a control character in it", "take it out"),
    ),
    (
        re.compile("@"),
        (
            "there is an @ in it: a user and a password would end up in logs",
            "take them out, and set the option `headers` (WEIGHTWIRE_HEADERS): Authorization: Basic …",
        ),
    ),
    (re.compile(r"[?#]"), ("there is a query or a fragment in it", "end it before the ? or the #")),
)
"""What no address of an engine holds, why, and what to do."""

_SECRET = re.compile(r"^((?:[A-Za-z][A-Za-z0-9+.-]*:)?//)?.*@", re.DOTALL)


def checked(url: object) -> str:
    """The base URL of one engine, without a slash at its end.

    Raises:
        ConfigurationError: it is no http or https URL, or holds what no base URL of an engine does; says what.
    """
    if not isinstance(url, str):
        raise _wrong(url, f"its type is {type(url).__name__}; a text is expected", f"give a text, such as {_EXAMPLE!r}")
    why, hint = _trouble(url)
    if why:
        raise _wrong(url, why, hint)
    return url.rstrip("/")


def all_checked(target: object) -> tuple[str, ...]:
    """The base URLs of one engine, or of several.

    Raises:
        ConfigurationError: one is no address, there is none, or two mean the same server.
    """
    several = isinstance(target, Iterable) and not isinstance(target, str | bytes | Mapping)
    urls = tuple(map(checked, cast("Iterable[object]", target) if several else (target,)))
    if not urls:
        raise ConfigurationError("There are no engines; at least one address is needed.", hint=_connect(_EXAMPLE))
    seen: dict[tuple[str, int, str], str] = {}
    for url in urls:
        server = _server(url)
        if server in seen:
            raise ConfigurationError(
                f"The addresses {seen[server]!r} and {url!r} mean one engine; each engine is needed once.",
                hint=f"leave one of the two out: {_connect(seen[server])}",
            )
        seen[server] = url
    return urls


def same(one: str, other: str) -> bool:
    """Whether two addresses mean the same server: ``localhost``, ``127.0.0.1`` and ``::1`` do, with the same port."""
    return _server(one) == _server(other)


def shown(url: object) -> str:
    """*url* as it may be printed: without a user and a password."""
    return _SECRET.sub(r"\1…@", str(url))


def _server(url: str) -> tuple[str, int, str]:
    """What tells one server from another. Not the scheme: nothing speaks both on one port."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    with suppress(ValueError):
        host = str(ipaddress.ip_address(host))
    return (
        "localhost" if host in _LOOPBACK else host,
        parts.port or _DEFAULT_PORTS.get(parts.scheme, 0),
        posixpath.normpath(parts.path or "/"),
    )


def _trouble(url: str) -> tuple[str, str]:
    """What is wrong with *url*, and what to do about it; two empty texts for nothing."""
    found = next((trouble for pattern, trouble in _NEVER if pattern.search(url)), None)
    if found:
        return found
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"{str(error)[:1].lower()}{str(error)[1:]}", f"write it like {_EXAMPLE}, or http://[::1]:8000"
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        return "it names no scheme, or no host", "begin it with http:// or https://"
    if port == 0 or parts.netloc.endswith(":"):
        return "its port is missing, or 0", f"give the port that the server listens on, as in {_EXAMPLE}"
    return "", ""


def _wrong(url: object, why: str, hint: str) -> ConfigurationError:
    return ConfigurationError(
        f"{shown(url)!r} is no address of an engine ({why}); it should read like {_EXAMPLE}.", hint=hint
    )


def _connect(url: str) -> str:
    return f"weightwire.connect({url!r}, model)"
