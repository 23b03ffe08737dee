"""A proxy in front of a server that answers one call by itself: an engine that fails while bytes are on their way."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

import requests

REFUSAL = b'{"error":{"message":"the proxy says no","type":"InternalServerError","param":null,"code":500}}'


class _Quiet(ThreadingHTTPServer):
    """Says nothing of clients that leave in the middle of a call: here they do."""

    def handle_error(self, request: object, client_address: object) -> None:
        del request, client_address


class Proxy:
    """Passes everything on but calls to *refuse*, which it answers with 500 and does not pass on."""

    def __init__(self, target: str) -> None:
        """Listen; serving begins on entry."""
        self.refuse = ""
        self.refused = 0
        self._server = _Quiet(("127.0.0.1", 0), _handler(self, target))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        """Serve."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()


def _handler(proxy: Proxy, target: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._pass_on("GET")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if proxy.refuse and self.path.startswith(proxy.refuse):
                proxy.refused += 1
                self._answer(500, REFUSAL)
            else:
                self._pass_on("POST", body)

        def _pass_on(self, verb: str, body: bytes | None = None) -> None:
            headers = {"Content-Type": self.headers.get("Content-Type", "application/json")}
            reply = requests.request(verb, target + self.path, data=body, headers=headers, timeout=120.0)
            self._answer(reply.status_code, reply.content)

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            del format, args

    return Handler
