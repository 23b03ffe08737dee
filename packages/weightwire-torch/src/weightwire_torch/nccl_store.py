"""The key-value store at which the workers of a stock engine meet the sender.

The port is bound once, here, and handed to torch as an open socket: a port that is looked up free and bound later can
be taken in between, and torch's own server listens on every interface, whatever host it is given.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore
from weightwire.errors import ChannelError

from weightwire_torch.nccl_rendezvous import KEY, pickled_unique_id

_EVERYWHERE = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}  # noqa: S104 - see _bound
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


class Offer:
    """The communicator's id, laid out for the workers."""

    def __init__(self, place: Place, unique_id: bytes, *, world_size: int, timeout: float) -> None:
        """Listen, and put the id where a stock worker looks for it. Waits for nobody.

        Args:
            place: where.
            unique_id: NCCL's.
            world_size: members, the sender included.
            timeout: seconds; of the store's own waits.

        Raises:
            ChannelError: the address can't be bound, or torch can't serve a store there.
        """
        listener, ourselves = _bound(place)
        self.port = int(listener.getsockname()[1])
        try:
            self._store: TCPStore | None = TCPStore(
                ourselves,
                self.port,
                world_size,
                is_master=True,
                timeout=timedelta(seconds=timeout),
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
                use_libuv=False,  # libuv's server takes no socket that is already bound (torch 2.10 to 2.13)
            )
            self._store.set(KEY, pickled_unique_id(unique_id))  # type: ignore[arg-type] # the stub says str
        except RuntimeError as error:
            raise ChannelError(f"torch can't serve a store at {place.address}:{self.port}: {error}") from error

    def withdraw(self) -> None:
        """Stop listening. Whoever reads the id later could join a group that is complete. Idempotent."""
        self._store = None


def _bound(place: Place) -> tuple[socket.socket, str]:
    """A listening socket, and the address at which this process reaches it.

    An address that this machine doesn't have (of a router, or of the host of a container) can be advertised but not
    bound; then every interface is listened on.
    """
    try:
        family = socket.getaddrinfo(place.address, place.port, type=socket.SOCK_STREAM)[0][0]
        try:
            return socket.create_server((place.address, place.port), family=family), place.address
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            return socket.create_server((_EVERYWHERE[family], place.port), family=family), _OURSELVES[family]
    except OSError as error:
        raise ChannelError(
            f"Can't listen on {place.address}:{place.port}: {error}.",
            hint="the option `port` must be free (0 chooses one), and `advertise` an address of this machine",
        ) from error
