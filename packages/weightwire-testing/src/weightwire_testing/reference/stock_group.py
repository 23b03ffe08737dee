"""A worker's side of the stock rendezvous: the key-value store, the unique id in it, and gloo in NCCL's place.

The sender puts a pickled ``ncclUniqueId`` under :data:`KEY` of a ``TCPStore`` (all releases), or gives its bytes in
the init call (from 0.30). NCCL's id holds the address of rank 0; the stand-in's (:mod:`weightwire_testing.gloo_id`)
names a store, which may be the first one. There a gloo group meets, and begins with NCCL's warm-up, the sum of one
float32. The stock shim in a real server does the same (docs/adr/0003).
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import torch
from torch import Tensor
from torch._C._distributed_c10d import TCPStore
from weightwire.deadlines import Deadline
from weightwire.errors import WeightwireError
from weightwire_torch.gloo_group import GlooGroup

from weightwire_testing import gloo_id
from weightwire_testing.gloo_id import UNIQUE_ID_BYTES

KEY = "broadcast_from/0/0"
_CLASS = ("vllm.distributed.device_communicators.pynccl_wrapper", "ncclUniqueId")


class _UniqueId:
    """Takes the place of vLLM's ctypes structure while it is unpickled."""


class _Unpickled(NamedTuple):
    state: dict[str, object]
    content: bytes


def _unpickle(cls: type, state: tuple[dict[str, object], bytes]) -> _Unpickled:
    """As ``_ctypes._unpickle``, without making an object of *cls*."""
    if cls is not _UniqueId:
        raise pickle.UnpicklingError(f"not a unique id: {cls!r}")
    return _Unpickled(*state)


class _Unpickler(pickle.Unpickler):
    """Reads a unique id and nothing else; a server that calls ``pickle.loads`` here runs whatever it is sent."""

    def find_class(self, module: str, name: str) -> object:
        if (module, name) == _CLASS:
            return _UniqueId
        if (module, name) == ("_ctypes", "_unpickle"):
            return _unpickle
        raise pickle.UnpicklingError(f"a unique id does not hold a {module}.{name}")


def read_unique_id(pickled: bytes) -> bytes:
    """The 128 bytes of a pickled ``ncclUniqueId``.

    Raises:
        ValueError: it is something else.
    """
    try:
        found = _Unpickler(io.BytesIO(pickled)).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"{KEY} does not hold a pickled ncclUniqueId: {error}") from error
    if not isinstance(found, _Unpickled):
        raise ValueError(f"{KEY} holds a {type(found).__name__}, not an ncclUniqueId")  # noqa: TRY004 - bad value
    return check_unique_id(found.content)


def check_unique_id(raw: bytes) -> bytes:
    """*raw*, if it has the length of a unique id.

    Raises:
        ValueError: it has another.
    """
    if len(raw) != UNIQUE_ID_BYTES:
        raise ValueError(f"a unique id has {UNIQUE_ID_BYTES} bytes, not {len(raw)}")
    return raw


class StockGroup:
    """One worker in the group of a sender and its workers. Every wait is bounded by the time-out, unlike NCCL's."""

    def __init__(self, group: GlooGroup) -> None:
        """Stand for a group that was joined."""
        self._group = group

    def broadcast(self, flat: Tensor) -> None:
        """Receive from the sender into *flat*, a one-dimensional uint8 tensor.

        Raises:
            RuntimeError: the sender is gone, or silent for too long.
        """
        with _as_torch_says_it():
            self._group.broadcast(flat)

    def warm_up(self) -> None:
        """NCCL's first collective: the sum of one float32.

        Raises:
            RuntimeError: likewise.
        """
        with _as_torch_says_it():
            self._group.all_reduce(torch.zeros(1))

    def close(self) -> None:
        """Leave."""
        self._group.close()


@contextmanager
def _as_torch_says_it() -> Iterator[None]:
    """What fails in vLLM's communicator is a RuntimeError."""
    try:
        yield
    except WeightwireError as error:
        raise RuntimeError(error.message) from error


def id_from_store(address: str, port: int, *, timeout: timedelta) -> bytes:
    """The unique id that the sender put into its store.

    Raises:
        ValueError: what is there is not a unique id.
        torch.distributed.DistError: nobody listens, or nobody wrote the id, in time.
    """
    store = TCPStore(address, port, is_master=False, timeout=timeout, wait_for_workers=False, use_libuv=False)
    return read_unique_id(store.get(KEY))


def join(unique_id: bytes, rank: int, *, world_size: int, timeout: timedelta) -> StockGroup:
    """Meet the others where the id says.

    Raises:
        ValueError: it is not the stand-in's.
        RuntimeError: nobody listens there, or not all come in time.
    """
    address, port = gloo_id.decode(unique_id)
    seconds = timeout.total_seconds()
    with _as_torch_says_it():
        group = GlooGroup.connect(address, port, rank=rank, world_size=world_size, timeout=seconds)
        group.join(Deadline.after(seconds))
    joined = StockGroup(group)
    joined.warm_up()
    return joined
