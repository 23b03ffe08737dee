"""A port that the workers are told of.

It is bound once, and kept: a port that is looked up free and bound later can be taken in between.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

from weightwire.errors import ChannelError

_EVERYWHERE = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}  # noqa: S104 - see bound
_OURSELVES = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where to listen.

    Attributes:
        address: what the workers are told; a name, an IPv4 or an IPv6 address.
        port: 0 lets the system choose.
    """

    address: str
    port: int = 0


def bound(place: Place, *, backlog: int | None = None) -> tuple[socket.socket, str]:
    """A listening socket, and the address at which this process reaches it.

    An address that this machine doesn't have (of a router, or of the host of a container) can be advertised but not
    bound; then every interface is listened on.

    Args:
        place: where.
        backlog: connections that may wait to be accepted; None for the system's default.

    Raises:
        ChannelError: it can't be bound.
    """
    try:
        family = socket.getaddrinfo(place.address, place.port, type=socket.SOCK_STREAM)[0][0]
        try:
            return socket.create_server((place.address, place.port), family=family, backlog=backlog), place.address
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            server = socket.create_server((_EVERYWHERE[family], place.port), family=family, backlog=backlog)
            return server, _OURSELVES[family]
    except OSError as error:
        raise ChannelError(
            f"Can't listen on {place.address}:{place.port}: {error}.",
            hint="the option `port` must be free (0 chooses one), and `advertise` an address of this machine",
        ) from error
