"""Which of this machine's addresses to use."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from weightwire.errors import ChannelError

LOOPBACK = "127.0.0.1"

_ANY_PORT = 9  # discard; connecting a datagram socket sends nothing


def address_towards(host: str) -> str:
    """This machine's address on the route to *host*. Sends no packet.

    Raises:
        ChannelError: *host* can't be resolved, or there is no route to it.
    """
    try:
        family, kind, proto, _, peer = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.connect(peer)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ChannelError(
            f"There is no way from here to {host!r}: {error}.",
            hint="set the option `advertise` to an address of this machine that the engine's workers can reach",
        ) from error


def address_for(urls: Iterable[str]) -> str:
    """The address at which the workers of the engines at *urls* can reach this machine: loopback if all are local."""
    hosts = [urlsplit(url).hostname or LOOPBACK for url in urls]
    remote = next((host for host in hosts if not _is_local(host)), None)
    return address_towards(remote) if remote is not None else LOOPBACK


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
