"""The trainer's ranks, as torch.distributed knows them."""

from __future__ import annotations

import time

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from weightwire.deadlines import Deadline
from weightwire.errors import ChannelError
from weightwire.planes import RankGroup, SingleRank

_FIRST_NAP = 0.001  # seconds; doubled up to the longest
_LONGEST_NAP = 0.02


def rank_group() -> RankGroup:
    """The ranks of the default process group where there is one, else this process alone."""
    if not (dist.is_available() and dist.is_initialized()):
        return SingleRank()
    store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public way to it
    return StoreRanks(store, rank=dist.get_rank(), size=dist.get_world_size())


class StoreRanks:
    """Ranks that share a store of torch.distributed."""

    def __init__(self, store: Store, *, rank: int, size: int) -> None:
        """Share *store*.

        Args:
            store: the store of the default group. A clone of it is used: a store is locked while one thread talks
                to it, and torch's own threads use the original.
            rank: this process.
            size: how many there are.
        """
        self.rank = rank
        self.size = size
        self._store = PrefixStore("weightwire", store.clone())  # type: ignore[attr-defined] # not in the stubs

    def publish(self, key: str, value: bytes) -> None:
        """Write once.

        Raises:
            ChannelError: the process that holds the store is gone.
        """
        try:
            self._store.set(key, value)  # type: ignore[arg-type] # the stub says str, and bytes are right
        except RuntimeError as error:
            raise _gone(error) from error

    def read(self, key: str, deadline: Deadline) -> bytes:
        """Wait until *key* is there.

        It is polled: torch writes a warning to stderr for every wait in a TCPStore that runs out of time.

        Raises:
            DeadlineExceeded: nobody wrote it in time.
            ChannelError: the process that holds the store is gone.
        """
        nap = _FIRST_NAP
        try:
            while not self._store.check([key]):
                deadline.check(f"waiting for {key!r} from another rank")
                time.sleep(min(nap, deadline.remaining()))
                nap = min(2 * nap, _LONGEST_NAP)
            return bytes(self._store.get(key))
        except RuntimeError as error:
            raise _gone(error) from error


def _gone(error: RuntimeError) -> ChannelError:
    return ChannelError(
        f"The store of torch.distributed does not answer: {error}",
        hint="look at the log of the process that hosts it (rank 0, or torchrun)",
    )
