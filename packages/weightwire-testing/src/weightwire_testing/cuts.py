"""A network that misbehaves: a proxy on loopback between a client and a server, with real sockets on both sides.

::

    with CutProxy(engine.url) as proxy:
        session = weightwire.connect(proxy.url, model)
        proxy.set_faults("update:cut:after")   # the words of weightwire_testing.faults, for servers that know none
        proxy.go_silent()                      # a black hole: connections stand, and nothing comes through
        proxy.forget()                         # half-open: what was connected is dead without a word, new ones work
        proxy.reset()                          # every connection is reset, and every new one
        proxy.heal()

What the network swallowed is never delivered.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

from weightwire_testing.cut_connection import Closed, Connection, Request, Weather
from weightwire_testing.faults import Fault, FaultPlan, Kind, Phase, When

PHASES = {
    "/version": Phase.CONNECT,
    "/health": Phase.HEALTH,
    "/server_info": Phase.SERVER_INFO,
    "/get_world_size": Phase.WORLD_SIZE,
    "/init_weight_transfer_engine": Phase.INIT,
    "/update_weight_version": Phase.MARK,
    "/pause": Phase.PAUSE,
    "/start_weight_update": Phase.START,
    "/update_weights": Phase.UPDATE,
    "/finish_weight_update": Phase.FINISH,
    "/resume": Phase.RESUME,
    "/is_paused": Phase.IS_PAUSED,
    "/weight_info": Phase.WEIGHT_INFO,
    "/shutdown_weight_transfer_engine": Phase.SHUTDOWN,
    "/v1/completions": Phase.COMPLETIONS,
}
"""Which fault strikes which route."""

UPSTREAM_SECONDS = 300.0
"""The longest that the server behind may take to answer."""

_GARBAGE = b"<html>\xff not what you asked for"


class CutProxy:
    """A proxy in front of one server. A context manager.

    Attributes:
        url: what the client connects to.
        passed: the routes of the requests that came through to the server, in order.
    """

    def __init__(self, target: str, *, die: Callable[[], None] | None = None) -> None:
        """Listen on a free port of loopback.

        Args:
            target: the server's base URL; it need not be up yet.
            die: what the fault ``die`` does to the server; by default the connection is cut, no more.
        """
        self.passed: list[str] = []
        self._target = urlsplit(target)
        self._die = die or _nothing
        self._plan = FaultPlan()
        self._weather = Weather.FAIR
        self._epoch = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="cut proxy", daemon=True).start()

    def __enter__(self) -> Self:
        """Serve."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.close()

    def close(self) -> None:
        """Stop listening, and reset every connection. Idempotent."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for the next connection
        self._listener.close()
        self.reset()

    def lead_to(self, target: str) -> None:
        """Stand before another server from now on: one that was started anew, at another address."""
        self._target = urlsplit(target)

    def set_faults(self, *faults: Fault | str) -> None:
        """Put these faults in force instead of those there were."""
        self._plan.replace(tuple(Fault.parse(fault) if isinstance(fault, str) else fault for fault in faults))

    def go_silent(self) -> None:
        """Let nothing through any more, and close nothing."""
        self._weather = Weather.SILENT

    def forget(self) -> None:
        """Let the connections that stand go dead without a word; new ones work."""
        self._epoch += 1

    def reset(self) -> None:
        """Reset every connection, and every new one."""
        self._weather = Weather.RESETTING

    def heal(self) -> None:
        """Let new connections through, and take all faults away; what was swallowed stays so."""
        if self._weather is Weather.SILENT:
            self.forget()
        self._weather = Weather.FAIR
        self.set_faults()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(peer, self._epoch), name="cut proxy", daemon=True).start()

    def _serve(self, peer: socket.socket, epoch: int) -> None:
        client = Connection(peer, lambda: self._weather if epoch == self._epoch else Weather.SILENT)
        with suppress(Closed), peer:
            while True:
                self._exchange(client, client.read())

    def _exchange(self, client: Connection, request: Request) -> None:
        phase = PHASES.get(request.path)
        fault = self._plan.next(phase) if phase is not None else None
        if fault is not None and fault.when is When.BEFORE and self._strikes_before(client, fault):
            return
        client.let_through()
        reply = self._forward(client, request)
        if fault is not None and fault.when is When.AFTER:
            reply = self._spoilt(client, fault, reply)
        client.write(reply, fault)

    def _strikes_before(self, client: Connection, fault: Fault) -> bool:
        """Strike before the server acts; whether that was the end of it."""
        if fault.kind is Kind.STALL:
            client.sit_still(fault.seconds)
            return False
        if fault.kind is Kind.REFUSE:
            client.write(_refusal(fault))
            return True
        if fault.kind is Kind.DIE:
            self._die()
        client.hang_up()
        return True

    def _spoilt(self, client: Connection, fault: Fault, reply: bytes) -> bytes:
        """What becomes of a reply before it is sent."""
        match fault.kind:
            case Kind.STALL:
                client.sit_still(fault.seconds)
            case Kind.REFUSE:
                return _refusal(fault)
            case Kind.GARBAGE:
                return _reply(http.client.OK, "text/html", _GARBAGE)
            case Kind.CUT:
                client.hang_up()
            case Kind.DIE:
                self._die()
                client.hang_up()
            case _:
                pass
        return reply

    def _forward(self, client: Connection, request: Request) -> bytes:
        self.passed.append(request.path)
        upstream = http.client.HTTPConnection(
            self._target.hostname or "", self._target.port or http.client.HTTP_PORT, timeout=UPSTREAM_SECONDS
        )
        try:
            upstream.request(request.method, request.target, body=request.body or None, headers=request.headers)
            answer = upstream.getresponse()
            return _reply(answer.status, answer.headers.get_content_type(), answer.read())
        except (http.client.HTTPException, OSError):
            client.hang_up()
            raise
        finally:
            upstream.close()


def _reply(status: int, kind: str, body: bytes) -> bytes:
    phrase = http.client.responses.get(status, "Error")
    head = (f"HTTP/1.1 {status} {phrase}", f"Content-Type: {kind}", f"Content-Length: {len(body)}")
    return ("\r\n".join(head) + "\r\n\r\n").encode() + body


def _refusal(fault: Fault) -> bytes:
    text = fault.text.replace('"', "'")
    return _reply(fault.status, "application/json", f'{{"error": {{"message": "{text}"}}}}'.encode())


def _nothing() -> None:
    """Leave the server alone."""
