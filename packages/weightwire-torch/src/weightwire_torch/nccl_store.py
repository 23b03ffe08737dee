"""The key-value store at which the workers of a stock engine meet the sender.

Its socket is handed to torch open: torch's own server listens on every interface, whatever host it is given.
"""

from __future__ import annotations

from datetime import timedelta

from torch._C._distributed_c10d import TCPStore
from weightwire.errors import ChannelError

from weightwire_torch.listening import Place, bound
from weightwire_torch.nccl_rendezvous import KEY, pickled_unique_id


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
        listener, ourselves = bound(place)
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
