"""What a vLLM answers: its own words where it refuses, a checked shape where it agrees."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from weightwire.errors import EngineRefused, GarbledReply
from weightwire.http import Reply

OK, UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 200, 401, 403, 404

ENGINE_DEAD = "EngineCore encountered an issue"
"""What every route that reaches the engine says once its process has died; the web server follows it soon."""

UNTOLD = frozenset({"", "Internal Server Error"})
"""What a server error says before 0.18, whatever its cause."""

SHORT = 2000
"""Characters of an answer that is quoted although it is not vLLM's, such as a proxy's page."""

T = TypeVar("T")


class _Error(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    """The forms of a refusal.

    vLLM's own handlers write ``{"error": {"message": …}}``; ``/pause``, ``/resume`` and their like, which catch what
    they can themselves, ``{"error": "…"}``; FastAPI ``{"detail": …}``, a string or a list of findings.
    """

    error: _Error | str = ""
    detail: object = ""


def server_text(reply: Reply) -> str:
    """The engine's own words, without the JSON around them."""
    try:
        found = msgspec.json.decode(reply.body, type=_Refusal)
    except msgspec.DecodeError:
        return reply.text.strip()[:SHORT]
    if isinstance(found.error, _Error):
        return found.error.message
    words = found.error or found.detail
    return words if isinstance(words, str) else msgspec.json.encode(words).decode()


def refused(reply: Reply, call: str, *, hint: str = "") -> EngineRefused:
    """The error for an answer that is not 200.

    Args:
        reply: the answer.
        call: what was called, such as ``POST http://…/pause``.
        hint: what to try, where the caller knows better than the status does.
    """
    text = server_text(reply)
    message = f"{call} was refused with status {reply.status}."
    if ENGINE_DEAD in text:
        message = f"{call} was refused with status {reply.status}: the engine process is dead, and the engine lost."
        hint = "restart the server; its log says what killed the engine. Then push again, all weights"
    elif reply.status in {UNAUTHORIZED, FORBIDDEN}:
        hint = "vLLM guards none of these routes, so a proxy does: set the option `headers`"
    elif text in UNTOLD:
        hint = "; ".join(filter(None, ["the server's log says why (before 0.18 its answers don't)", hint]))
    error = EngineRefused(message, hint=hint, server_text=text)
    error.status = reply.status
    return error


def decode(reply: Reply, shape: type[T], *, call: str) -> T:
    """Read the body of a success.

    Raises:
        GarbledReply: it has another shape.
    """
    try:
        return msgspec.json.decode(reply.body, type=shape)
    except msgspec.DecodeError as error:
        raise garbled(reply, call, why=str(error)) from error


def garbled(reply: Reply, call: str, *, why: str) -> GarbledReply:
    """The error for a success that is not vLLM's."""
    return GarbledReply(
        f"{call} was answered with 200, but not as vLLM answers: {why}.",
        hint="is there a proxy in between, or another server at this address?",
        server_text=reply.text.strip()[:SHORT],
    )
