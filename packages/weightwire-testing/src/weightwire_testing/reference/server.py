"""HTTP/1.1 on loopback: connections kept alive, replies whole, in pieces, or spoilt as a fault asks."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from weightwire_testing.faults import Fault, Kind
from weightwire_testing.reference.app import Application
from weightwire_testing.reference.exchange import Reply, Request


class Server(ThreadingHTTPServer):
    """One thread a connection."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, application: Application, port: int) -> None:
        """Listen on 127.0.0.1.

        Args:
            application: who answers.
            port: 0 to let the system choose; :attr:`server_port` says which.
        """
        super().__init__(("127.0.0.1", port), _Handler)
        self.application = application

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that left: it may reset the connection, and that is no fault of this engine's."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type] # typeshed's types are private


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name for it
        """Say nothing: tests read ``/_calls``."""

    def do_GET(self) -> None:
        """Answer a GET."""
        self._exchange()

    def do_POST(self) -> None:
        """Answer a POST."""
        self._exchange()

    def _exchange(self) -> None:
        parts = urlsplit(self.path)
        request = Request(
            method=self.command,
            path=parts.path,
            query=dict(parse_qsl(parts.query, keep_blank_values=True)),
            headers={name.lower(): value for name, value in self.headers.items()},
            body=self.rfile.read(int(self.headers.get("content-length") or 0)),
        )
        outcome = self.server.application.answer(request)
        try:
            self._send(outcome.reply, outcome.fault)
        except OSError:
            self.close_connection = True  # the client is gone; what it asked for was done all the same

    def _send(self, reply: Reply, fault: Fault | None) -> None:
        kind = fault.kind if fault is not None else None
        if kind is Kind.CUT:
            self._hang_up()
        elif reply.stream is not None:
            self._send_stream(reply, reply.stream)
        elif kind is Kind.TRUNCATE:
            whole = self._head(reply) + reply.body
            self.wfile.write(whole[: len(whole) - max(1, len(reply.body) // 2)])
            self._hang_up()
        elif kind is Kind.TRICKLE and fault is not None:
            for byte in self._head(reply) + reply.body:
                self.wfile.write(bytes([byte]))
                time.sleep(fault.seconds)
        else:
            self.wfile.write(self._head(reply) + reply.body)

    def _head(self, reply: Reply) -> bytes:
        length = "Transfer-Encoding: chunked" if reply.stream is not None else f"Content-Length: {len(reply.body)}"
        phrase = HTTPStatus(reply.status).phrase if reply.status in set(HTTPStatus) else "Error"
        lines = (f"HTTP/1.1 {reply.status} {phrase}", f"Content-Type: {reply.content_type}", length)
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def _send_stream(self, reply: Reply, stream: Iterator[bytes]) -> None:
        try:
            self.wfile.write(self._head(reply))
            for piece in stream:
                self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
        finally:
            if hasattr(stream, "close"):
                stream.close()

    def _hang_up(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
