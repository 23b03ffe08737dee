"""A worker's side of the stock rendezvous: the key-value store, the unique id in it, and gloo in NCCL's place.

The sender puts a pickled ``ncclUniqueId`` under :data:`KEY` of a ``TCPStore`` (up to 0.33), or gives its bytes in the
init call (from 0.30). NCCL's id holds the address of rank 0; the stand-in's says ``GLOO:host:port`` and names a store
there, and the group of such an id meets under the prefix ``gloo`` and starts with NCCL's warm-up, the sum of one
float32. Any other 128 bytes mean the simpler form: the group meets in the first store, under ``gloo_comm``, without
a warm-up.
"""

from __future__ import annotations

import io
import pickle
import re
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._distributed_c10d import BroadcastOptions, PrefixStore, ProcessGroupGloo, Store, TCPStore

KEY = "broadcast_from/0/0"
UNIQUE_ID_BYTES = 128
_CLASS = ("vllm.distributed.device_communicators.pynccl_wrapper", "ncclUniqueId")
_STAND_IN = re.compile(rb"GLOO:([^\0]+):(\d+)\0*")


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


def address_in(unique_id: bytes) -> tuple[str, int] | None:
    """The address inside the stand-in's id; None for any other id."""
    found = _STAND_IN.fullmatch(unique_id)
    return (found[1].decode("ascii"), int(found[2])) if found else None


class StockGroup:
    """One worker in the group of a sender and its workers. Every wait is bounded by the time-out, unlike NCCL's."""

    def __init__(self, store: Store, rank: int, world_size: int, timeout: timedelta) -> None:
        """Join; returns when every member has come.

        Args:
            store: where the members meet, prefix included.
            rank: this worker's; rank 0 is the sender.
            world_size: members of the group.
            timeout: of joining, and of each collective.
        """
        gloo: Any = ProcessGroupGloo  # torch's stubs leave out what makes a group outside the default one
        options = gloo._Options()  # noqa: SLF001 - likewise
        options._timeout = timeout  # noqa: SLF001
        options._devices = [gloo.create_device(hostname="127.0.0.1")]  # noqa: SLF001
        self._group = gloo(store, rank, world_size, options)

    def broadcast(self, flat: Tensor) -> None:
        """Receive from the sender into *flat*, a one-dimensional uint8 tensor."""
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._group.broadcast([flat], options).wait()

    def warm_up(self) -> None:
        """NCCL's first collective: the sum of one float32."""
        self._group.allreduce([torch.zeros(1)]).wait()


def _store(address: str, port: int, timeout: timedelta) -> TCPStore:
    return TCPStore(address, port, is_master=False, timeout=timeout, wait_for_workers=False, use_libuv=False)


def join_by_store(address: str, port: int, rank: int, *, world_size: int, timeout: timedelta) -> StockGroup:
    """Join through the sender's store (all releases).

    Raises:
        ValueError: what is in the store is not a unique id.
        torch.distributed.DistError: nobody listens, or nobody wrote the id, in time.
    """
    store = _store(address, port, timeout)
    unique_id = read_unique_id(store.get(KEY))
    if address_in(unique_id) is not None:
        return join_by_id(unique_id, rank, world_size=world_size, timeout=timeout)
    return StockGroup(PrefixStore("gloo_comm", store), rank, world_size, timeout)


def join_by_id(unique_id: bytes, rank: int, *, world_size: int, timeout: timedelta) -> StockGroup:
    """Join by an id alone (from 0.30).

    Raises:
        ValueError: the id holds no address.
        torch.distributed.DistError: nobody listens there in time.
    """
    address = address_in(unique_id)
    if address is None:
        raise ValueError(f"not a unique id of the gloo stand-in: {unique_id[:16]!r}...")
    group = StockGroup(PrefixStore("gloo", _store(*address, timeout)), rank, world_size, timeout)
    group.warm_up()
    return group
