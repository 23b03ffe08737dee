"""HTTP to one engine: every call meets its deadline, and only transport trouble raises.

``requests`` bounds each read, not the whole answer, so a peer that sends a byte now and then could hold a caller for
ever. Every call therefore runs on a thread of its own, and the waiter leaves at the deadline.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec
import requests

from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import ConfigurationError, EngineUnreachable, GarbledReply
from weightwire.options import Options

IDLE_SECONDS = 2.0
"""Idle connections are not used again after this: uvicorn closes them after 5 s, and a POST must not be retried."""

SERVER_ERROR = 500
"""From this status on a connection is not used again: where an exception made the answer, uvicorn closes it a little
later without saying so, and the next POST would be reset (seen with vLLM 0.32.0)."""

LARGEST_REPLY = 64 * 1024 * 1024
"""Bytes after which an answer is no answer."""


class Reply(msgspec.Struct, frozen=True):
    """An answer, whatever its status."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", "replace")


class Http:
    """Calls to one base URL, over connections that are kept alive."""

    def __init__(self, url: str, options: Options) -> None:
        """Check *url*; connect later.

        Raises:
            ConfigurationError: it is no http or https URL.
        """
        self.url = url.rstrip("/")
        self._options = options
        self._trust_env = not _is_loopback(_host(url))
        self._idle: list[tuple[float, requests.Session]] = []
        self._lock = threading.Lock()

    def get(self, path: str, deadline: Deadline, params: Mapping[str, str] | None = None) -> Reply:
        """GET, and wait.

        Raises:
            EngineUnreachable: nothing answers, or the connection was cut.
            DeadlineExceeded: no answer in time.
        """
        return self._call("GET", path, deadline, params=params).result(deadline)

    def post(
        self, path: str, deadline: Deadline, body: bytes | None = None, *, params: Mapping[str, str] | None = None
    ) -> Reply:
        """POST, and wait; raises as :meth:`get`."""
        return self.call_post(path, deadline, body, params=params).result(deadline)

    def call_post(
        self, path: str, deadline: Deadline, body: bytes | None = None, *, params: Mapping[str, str] | None = None
    ) -> Call[Reply]:
        """POST, and return at once."""
        return self._call("POST", path, deadline, body=body, params=params)

    def close(self) -> None:
        """Close the idle connections. Idempotent."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, session in idle:
            session.close()

    def _call(
        self,
        method: str,
        path: str,
        deadline: Deadline,
        *,
        body: bytes | None = None,
        params: Mapping[str, str] | None = None,
    ) -> Call[Reply]:
        def work() -> Reply:
            return self._exchange(method, path, deadline, body, params)

        return Call(work, doing=f"waiting for {method} {self.url}{path}")

    def _exchange(
        self, method: str, path: str, deadline: Deadline, body: bytes | None, params: Mapping[str, str] | None
    ) -> Reply:
        session = self._take()
        try:
            with session.request(
                method,
                self.url + path,
                data=body,
                params=params,
                headers={"Content-Type": "application/json"} if body is not None else None,
                timeout=max(deadline.remaining(), 0.001),
                allow_redirects=False,
                stream=True,
            ) as response:
                reply = Reply(response.status_code, _read(response, deadline))
        except requests.RequestException as error:
            session.close()
            raise self._transport_error(method, path, deadline, error) from error
        if reply.status < SERVER_ERROR:
            self._give_back(session)
        else:
            session.close()
        return reply

    def _transport_error(
        self, method: str, path: str, deadline: Deadline, error: requests.RequestException
    ) -> Exception:
        if deadline.expired:
            return deadline.exceeded(f"waiting for {method} {self.url}{path}").at(engine=self.url)
        return EngineUnreachable(
            f"{method} {self.url}{path} got no whole answer: {_cause(error)}.",
            hint="Is the server up, and is this its address? `weightwire status URL` asks it.",
        ).at(engine=self.url)

    def _take(self) -> requests.Session:
        with self._lock:
            while self._idle:
                since, session = self._idle.pop()
                if time.monotonic() - since < IDLE_SECONDS:
                    return session
                session.close()
        return self._fresh()

    def _give_back(self, session: requests.Session) -> None:
        with self._lock:
            self._idle.append((time.monotonic(), session))

    def _fresh(self) -> requests.Session:
        session = requests.Session()
        session.headers.update(self._options.headers)
        session.trust_env = self._trust_env
        session.verify = self._options.tls_ca or self._options.tls_verify
        return session


def _read(response: requests.Response, deadline: Deadline) -> bytes:
    body = bytearray()
    for chunk in response.iter_content(65536):
        body += chunk
        deadline.check(f"reading the answer of {response.url}")
        if len(body) > LARGEST_REPLY:
            raise GarbledReply(f"{response.url} answers more than {LARGEST_REPLY} bytes; a control call never does.")
    return bytes(body)


def _cause(error: BaseException) -> str:
    """The innermost cause: requests wraps the one sentence that matters three times."""
    while isinstance(inner := error.__cause__ or error.__context__, BaseException):
        error = inner
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _host(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigurationError(
            f"{url!r} is no address of an engine; it should read like http://127.0.0.1:8000.",
            hint="begin it with http:// or https://",
        )
    return parts.hostname


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
