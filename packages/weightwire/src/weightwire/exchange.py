"""A call over HTTP and its answer, as data."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Reply(msgspec.Struct, frozen=True):
    """An answer, whatever its status."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", "replace")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One call; *url* is whole, but for the query."""

    method: str
    url: str
    params: Mapping[str, str] | None = None
    body: bytes | None = None

    @property
    def doing(self) -> str:
        """What waiting for it is called in messages."""
        return f"waiting for {self.method} {self.url}"
