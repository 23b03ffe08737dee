"""A request, a reply, and the errors that are replies: as vLLM words them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus

import msgspec


@dataclass(frozen=True, slots=True)
class Request:
    """What came over HTTP.

    Attributes:
        method: ``GET`` or ``POST``.
        path: without the query.
        query: the last value of each key.
        headers: by lower-case name.
        body: as it came.
    """

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def is_json(self) -> bool:
        """Whether the sender says that the body is JSON."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes back.

    Attributes:
        status: the HTTP status.
        body: all of it; empty for a stream.
        content_type: its kind.
        stream: the pieces of a body that is made while it is sent; closed when the reader goes away.
    """

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    stream: Iterator[bytes] | None = None


class Problem(Exception):
    """A request that is answered with an error."""

    def __init__(self, reply: Reply) -> None:
        """Answer with *reply*."""
        super().__init__(reply.body.decode())
        self.reply = reply


def ok(content: object) -> Reply:
    """A success."""
    return Reply(HTTPStatus.OK, msgspec.json.encode(content))


def detail(status: HTTPStatus) -> Reply:
    """The web framework's own error, for a route or a verb that there is not."""
    return Reply(status, msgspec.json.encode({"detail": status.phrase}))


def error(status: int, message: str, *, kind: str = "", code: int | str | None = None) -> Reply:
    """An error in the form of vLLM's handlers.

    Args:
        status: the HTTP status.
        message: in words.
        kind: the error's type; the status's phrase by default.
        code: the error's code; the status by default.
    """
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Error"
    content = {"message": message, "type": kind or phrase, "param": None, "code": status if code is None else code}
    return Reply(status, msgspec.json.encode({"error": content}))


def internal(message: str, *, silent: bool) -> Reply:
    """A failure inside the engine; *silent* where the release tells nothing of it (0.17)."""
    if silent:
        return Reply(HTTPStatus.INTERNAL_SERVER_ERROR, b"Internal Server Error", "text/plain; charset=utf-8")
    return error(HTTPStatus.INTERNAL_SERVER_ERROR, message, kind="InternalServerError")


def bad_request(message: str) -> Problem:
    """A request that can't be read."""
    return Problem(error(HTTPStatus.BAD_REQUEST, message))


def invalid(kind: str, where: str, *, message: str, found: str = "None") -> Problem:
    """A request that the web framework's validation refuses."""
    finding = {"type": kind, "loc": where, "msg": message, "input": found}
    return bad_request(f"1 validation error:\n  {finding}")
