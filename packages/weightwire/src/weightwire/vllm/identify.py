"""Is the thing at that address a vLLM, and which one?"""

from __future__ import annotations

import msgspec

from weightwire.deadlines import Deadline
from weightwire.http import Http
from weightwire.vllm.replies import FORBIDDEN, OK, UNAUTHORIZED, refused

SERVER_ERROR = 500


class _Version(msgspec.Struct):
    version: str


def version(http: Http, deadline: Deadline) -> str | None:
    """The version that ``GET /version`` tells; None where it tells none, so that this is no vLLM.

    The route is there in every release, needs neither dev mode nor a key, and does not touch the engine.

    Raises:
        EngineRefused: it is kept from us, or is not up to answering: that says nothing of what it is.
        EngineUnreachable: nothing answers.
        DeadlineExceeded: no answer in time.
    """
    reply = http.get("/version", deadline)
    if reply.status in {UNAUTHORIZED, FORBIDDEN} or reply.status >= SERVER_ERROR:
        raise refused(reply, f"GET {http.url}/version").at(engine=http.url)
    if reply.status != OK:
        return None
    try:
        return msgspec.json.decode(reply.body, type=_Version).version
    except msgspec.DecodeError:
        return None
