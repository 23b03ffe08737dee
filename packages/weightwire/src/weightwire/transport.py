"""Connections to one engine, kept alive. The only module that imports ``requests``.

It is imported with the first call, not with the package: ``requests`` takes longer to import than all the rest, and
discovery must stay quick.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter

from weightwire.deadlines import Deadline
from weightwire.errors import ConfigurationError, EngineUnreachable, GarbledReply, WeightwireError
from weightwire.exchange import Reply, Request
from weightwire.options import Options
from weightwire.tracebacks import let_go_of_all

IDLE_SECONDS = 2.0
"""Idle connections are not used again after this: uvicorn closes them after 5 s, and a POST must not be retried."""

SERVER_ERROR = 500
"""From this status on a connection is not used again: where an exception made the answer, uvicorn closes it a little
later without saying so, and the next POST would be reset (seen with vLLM 0.32.0)."""

_PLAIN_HTTP = ("wrong_version_number", "wrong version number", "record layer failure", "packet length too long")
"""How OpenSSL's releases call an answer in plain HTTP."""

LARGEST_REPLY = 64 * 1024 * 1024
"""Bytes after which an answer is no answer."""


FORGET_UNSENT = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
"""Closing drops what has not reached the peer: a call that was given up must not arrive once a network has healed."""


class _Adapter(HTTPAdapter):
    """Connections that are closed without lingering."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Set the option on every socket."""
        options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), FORGET_UNSENT]
        super().init_poolmanager(*args, socket_options=options, **kwargs)


class Connections:
    """A pool of connections; a call has one to itself."""

    def __init__(self, url: str, options: Options) -> None:
        """Connect nothing yet."""
        self._options = options
        self._engine = url
        self._trust_env = not _is_loopback(urlsplit(url).hostname or "")
        self._idle: list[tuple[float, requests.Session]] = []
        self._lock = threading.Lock()

    def exchange(self, request: Request, deadline: Deadline) -> Reply:
        """Send *request* and read the whole answer.

        Raises:
            EngineUnreachable: nothing answers, or the connection was cut.
            DeadlineExceeded: no whole answer in time.
            ConfigurationError: the address or an option is such that nothing could be sent.
            GarbledReply: the answer is endless.
        """
        session = self._take()
        try:
            reply = _exchange(session, request, deadline)
        except (OSError, ValueError) as error:  # OSError: the base of all that requests raises, and of a missing file
            session.close()
            let_go_of_all(error)
            raise self._trouble(request, deadline, error) from (None if _shows_a_header(error) else error)
        except BaseException:
            session.close()
            raise
        self._give_back(session, reply)
        return reply

    def close(self) -> None:
        """Close the idle connections. Idempotent."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, session in idle:
            session.close()

    def _trouble(self, request: Request, deadline: Deadline, error: OSError | ValueError) -> WeightwireError:
        if not isinstance(error, requests.RequestException) or isinstance(error, ValueError):
            return _never_sent(request, error).at(engine=self._engine)
        if deadline.expired:
            return deadline.exceeded(request.doing).at(engine=self._engine)
        return EngineUnreachable(
            f"{request.method} {request.url} got no whole answer: {_cause(error)}.", hint=_advice(error)
        ).at(engine=self._engine)

    def _take(self) -> requests.Session:
        with self._lock:
            while self._idle:
                since, session = self._idle.pop()
                if time.monotonic() - since < IDLE_SECONDS:
                    return session
                session.close()
        return self._fresh()

    def _give_back(self, session: requests.Session, reply: Reply) -> None:
        if reply.status >= SERVER_ERROR:
            session.close()
            return
        with self._lock:
            self._idle.append((time.monotonic(), session))

    def _fresh(self) -> requests.Session:
        session = requests.Session()
        for scheme in ("http://", "https://"):
            session.mount(scheme, _Adapter())
        session.headers.update(self._options.headers)
        session.trust_env = self._trust_env
        session.verify = self._options.tls_ca or self._options.tls_verify
        return session


def _exchange(session: requests.Session, request: Request, deadline: Deadline) -> Reply:
    with session.request(
        request.method,
        request.url,
        data=request.body,
        params=request.params,
        headers={"Content-Type": "application/json"} if request.body is not None else None,
        timeout=max(deadline.remaining(), 0.001),
        allow_redirects=False,
        stream=True,
    ) as response:
        return Reply(response.status_code, _read(response, deadline))


def _read(response: requests.Response, deadline: Deadline) -> bytes:
    body = bytearray()
    for chunk in response.iter_content(65536):
        body += chunk
        deadline.check(f"reading the answer of {response.url}")
        if len(body) > LARGEST_REPLY:
            raise GarbledReply(f"{response.url} answers more than {LARGEST_REPLY} bytes; a control call never does.")
    return bytes(body)


def _shows_a_header(error: OSError | ValueError) -> bool:
    """Whether the error's text holds a header's value: requests' own, or up to 2.32 that of http.client below it."""
    return isinstance(error, requests.exceptions.InvalidHeader) or not isinstance(error, OSError)


def _never_sent(request: Request, error: OSError | ValueError) -> ConfigurationError:
    """The error for a call that never left: requests' errors about arguments are ValueErrors too."""
    if _shows_a_header(error):
        return ConfigurationError("A header can't be sent (not shown, it may hold a secret).", hint="mend `headers`")
    return ConfigurationError(
        f"{request.method} {request.url} can't be sent: {str(error).rstrip('.')}.",
        hint="check the address" if isinstance(error, ValueError) else "check the option `tls_ca`",
    )


def _advice(error: requests.RequestException) -> str:
    if isinstance(error, requests.exceptions.SSLError):
        if any(words in str(error).lower() for words in _PLAIN_HTTP):
            return "the server speaks no TLS: use http:// instead of https://"
        return "name the file with its certificates in the option `tls_ca` (WEIGHTWIRE_TLS_CA)"
    return "is the server up, and is this its address? `curl URL/version` shows what a vLLM answers"


def _cause(error: BaseException) -> str:
    """The innermost cause: requests wraps the one sentence that matters three times."""
    while isinstance(inner := error.__cause__ or error.__context__, BaseException):
        error = inner
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
