"""Calls to one vLLM whose answers are checked."""

from __future__ import annotations

from typing import TypeVar

from weightwire.deadlines import Deadline
from weightwire.http import Http, Reply
from weightwire.vllm.posts import Post
from weightwire.vllm.replies import OK, decode, garbled, refused

T = TypeVar("T")


class Client:
    """Asks and tells; whatever comes back is either of the right shape or an error that quotes the server."""

    def __init__(self, http: Http) -> None:
        """Speak over *http*."""
        self._http = http
        self.url = http.url

    def look(self, path: str, deadline: Deadline) -> Reply:
        """GET whatever is there, also where that is a 404 or a 405. Changes nothing."""
        return self._http.get(path, deadline)

    def ask(self, path: str, shape: type[T], deadline: Deadline, *, params: dict[str, str] | None = None) -> T:
        """GET, and read the answer as *shape*.

        Raises:
            EngineRefused: the status is not 200.
            GarbledReply: the body has another shape.
        """
        call = f"GET {self.url}{path}"
        reply = self._http.get(path, deadline, params=params)
        if reply.status != OK:
            raise refused(reply, call).at(engine=self.url)
        return decode(reply, shape, call=call)

    def tell(self, post: Post, deadline: Deadline, *, hint: str = "") -> None:
        """POST, and check that the answer is the success that belongs to it.

        Raises:
            EngineRefused: the status is not 200.
            GarbledReply: it is another answer.
        """
        call = f"POST {self.url}{post.path}"
        reply = self._http.post(post.path, deadline, post.body, params=post.params)
        if reply.status != OK:
            raise refused(reply, call, hint=hint).at(engine=self.url)
        key, value = post.answer
        said = decode(reply, dict[str, object], call=call)
        if key not in said or (value is not None and said[key] != value):
            raise garbled(reply, call, why=_missing(key, value)).at(engine=self.url)

    def close(self) -> None:
        """Drop the connections."""
        self._http.close()


def _missing(key: str, value: str | bool | None) -> str:
    return f"there is no {key!r} in it" if value is None else f"{key!r} should be {value!r}"
