"""How a worker learns that the sender is gone while it waits in a collective that has no time-out.

The sender listens at a port as long as it lives, and accepts nobody: the kernel completes the workers' connections all
the same, and cuts them when the socket is closed, whoever closes it. So there is no thread, nothing is ever sent, and
a killed process needs no last words. What is not seen is a machine that vanishes; a deadline is for that.
"""

from __future__ import annotations

import socket
from typing import Self

from weightwire.errors import ChannelError

from weightwire_torch.listening import Place, bound


class Lifeline:
    """The sender's end."""

    def __init__(self, place: Place, *, workers: int) -> None:
        """Listen.

        Args:
            place: where.
            workers: that will connect; so many connections wait to be accepted.

        Raises:
            ChannelError: the address can't be bound.
        """
        self._listener, _ = bound(place, backlog=workers)
        self.port = int(self._listener.getsockname()[1])

    def cut(self) -> None:
        """Let the workers know. Idempotent."""
        self._listener.close()


class Tether:
    """A worker's end."""

    def __init__(self, connection: socket.socket) -> None:
        """Own *connection*, or, where it is closed, hold on to nothing."""
        self._connection = connection
        connection.setblocking(False)

    @classmethod
    def tied_to(cls, address: str, port: int, *, timeout: float) -> Self:
        """Connect.

        Raises:
            ChannelError: nobody listens there, or not within *timeout* seconds.
        """
        try:
            return cls(socket.create_connection((address, port), timeout=timeout))
        except OSError as error:
            raise ChannelError(
                f"This worker can't reach the sender at {address}:{port}: {error}",
                hint="the trainer's option `advertise` must be an address that this machine can reach",
            ) from error

    def watch(self) -> BaseException | None:
        """An error if the sender is gone; None while it lives. Never blocks."""
        try:
            said = self._connection.recv(1)
        except BlockingIOError:
            return None
        except OSError:
            said = b""
        if said:
            return None
        return ChannelError(
            "The sender is gone: it was killed, or it left the channel.",
            hint="start the trainer again: it connects anew, and pushes all weights",
        )

    def close(self) -> None:
        """Let go. Idempotent."""
        self._connection.close()
