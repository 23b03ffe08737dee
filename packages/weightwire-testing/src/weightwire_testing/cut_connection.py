"""One client's connection to a :class:`~weightwire_testing.cuts.CutProxy`: whole requests in, spoilt replies out."""

from __future__ import annotations

import http.client
import io
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from weightwire_testing.faults import Fault, Kind

_TICK = 0.02  # seconds between two looks at the weather
_RESET = struct.pack("ii", 1, 0)


class Weather(StrEnum):
    """How the network is."""

    FAIR = "fair"
    SILENT = "silent"
    """Connections stand, and nothing comes through."""
    RESETTING = "resetting"
    """Every connection is reset."""


class Closed(Exception):
    """The client is gone, or its connection was ended."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a client sent."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        """The route, without the query."""
        return urlsplit(self.target).path


class Connection:
    """The client's end."""

    def __init__(self, peer: socket.socket, weather: Callable[[], Weather]) -> None:
        """Serve *peer* in this weather."""
        self._peer = peer
        self._weather = weather
        self._unread = b""
        peer.settimeout(_TICK)

    def read(self) -> Request:
        """Wait for a whole request.

        Raises:
            Closed: there will be none.
        """
        while b"\r\n\r\n" not in self._unread:
            self._unread += self._more()
        head, _, rest = self._unread.partition(b"\r\n\r\n")
        line, _, fields = head.partition(b"\r\n")
        method, target, _ = line.decode("latin-1").split(" ", 2)
        headers = http.client.parse_headers(io.BytesIO(fields + b"\r\n\r\n"))
        length = int(headers.get("content-length", "0"))
        while len(rest) < length:
            rest += self._more()
        self._unread = rest[length:]
        return Request(method, target, dict(headers.items()), rest[:length])

    def write(self, reply: bytes, fault: Fault | None = None) -> None:
        """Send a reply, as the fault has it.

        Raises:
            Closed: the connection has ended with it, or before it.
        """
        self.let_through()
        kind = fault.kind if fault is not None else None
        if kind is Kind.TRUNCATE:
            self._send(reply[: -max(1, len(reply.partition(b"\r\n\r\n")[2]) // 2)])
            self.hang_up()
        elif kind is Kind.TRICKLE and fault is not None:
            for byte in reply:
                self._send(bytes([byte]))
                time.sleep(fault.seconds)
        else:
            self._send(reply)

    def let_through(self) -> None:
        """Go on if the weather lets anything through; in a silent network wait until the client goes.

        Raises:
            Closed: nothing comes through any more.
        """
        while self._weather() is Weather.SILENT:
            self.sit_still(_TICK)
            if self._gone():
                raise Closed
        if self._weather() is Weather.RESETTING:
            self.reset()

    def sit_still(self, seconds: float) -> None:
        """Do nothing for so long, or until the client is gone."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._gone():
            time.sleep(min(_TICK, seconds))

    def hang_up(self) -> None:
        """End the connection in order.

        Raises:
            Closed: always.
        """
        self._peer.close()
        raise Closed

    def reset(self) -> None:
        """Reset the connection.

        Raises:
            Closed: always.
        """
        self._peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.hang_up()

    def _more(self) -> bytes:
        while True:
            self.let_through()
            try:
                data = self._peer.recv(65536)
            except TimeoutError:
                continue
            except OSError as error:
                raise Closed from error
            if not data:
                raise Closed
            return data

    def _send(self, data: bytes) -> None:
        try:
            self._peer.sendall(data)
        except OSError as error:
            raise Closed from error

    def _gone(self) -> bool:
        """Whether the client has closed; what it sent stays where it is."""
        try:
            return self._peer.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except (BlockingIOError, TimeoutError):
            return False
        except OSError:
            return True
