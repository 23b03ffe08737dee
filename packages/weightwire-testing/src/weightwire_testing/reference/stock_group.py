"""A worker's side of the stock rendezvous: the key-value store, the unique id in it, and gloo in NCCL's place.

The sender puts a pickled ``ncclUniqueId`` under :data:`KEY` of a ``TCPStore`` (all releases), or gives its bytes in
the init call (from 0.30). NCCL's id holds the address of rank 0; the stand-in's says ``GLOO:host:port`` and names a
store, which may be the first one. There the group meets under the prefix ``gloo``, and begins with NCCL's warm-up,
the sum of one float32. The stock shim in a real server does the same (docs/adr/0003).
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


def address_in(unique_id: bytes) -> tuple[str, int]:
    """The address inside the stand-in's id.

    Raises:
        ValueError: it is another id, such as NCCL's own.
    """
    found = _STAND_IN.fullmatch(unique_id)
    if found is None:
        raise ValueError(f"not a unique id of the gloo stand-in: {unique_id[:16]!r}...")
    return found[1].decode("ascii"), int(found[2])


class StockGroup:
    """One worker in the group of a sender and its workers. Every wait is bounded by the time-out, unlike NCCL's."""

    def __init__(self, store: Store, rank: int, *, world_size: int, timeout: timedelta) -> None:
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


def id_from_store(address: str, port: int, *, timeout: timedelta) -> bytes:
    """The unique id that the sender put into its store.

    Raises:
        ValueError: what is there is not a unique id.
        torch.distributed.DistError: nobody listens, or nobody wrote the id, in time.
    """
    return read_unique_id(_store(address, port, timeout).get(KEY))


def join(unique_id: bytes, rank: int, *, world_size: int, timeout: timedelta) -> StockGroup:
    """Meet the others where the id says.

    Raises:
        ValueError: it is not the stand-in's.
        torch.distributed.DistError: nobody listens there in time.
    """
    address, port = address_in(unique_id)
    group = StockGroup(
        PrefixStore("gloo", _store(address, port, timeout)), rank, world_size=world_size, timeout=timeout
    )
    group.warm_up()
    return group
