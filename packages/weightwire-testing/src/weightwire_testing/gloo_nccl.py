"""A stand-in for the NCCL library: the few calls of a weight receiver, over gloo.

It takes the place of the class ``NCCLLibrary`` in vLLM's ``pynccl``, one layer below ``PyNcclCommunicator``: how the id
is fetched from the store or from the call, the warm-up, the dtype table and everything above it stay vLLM's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from types import ModuleType
from typing import Any

import torch
from weightwire.deadlines import Deadline
from weightwire_torch.gloo_group import GlooGroup

from weightwire_testing import gloo_id

TIMEOUT_VARIABLE = "WEIGHTWIRE_STOCK_SHIM_TIMEOUT"
"""Seconds that a worker waits for the sender's store and in a collective: real NCCL would wait for ever."""

DEFAULT_TIMEOUT = 60.0

_DTYPES = (
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float8_e4m3fn,
)


class GlooComm:
    """The stand-in for an ``ncclComm_t``. Every wait is bounded."""

    def __init__(self, group: GlooGroup) -> None:
        """Stand for an open group."""
        self._group = group

    @classmethod
    def join(cls, unique_id: bytes, *, rank: int, world_size: int) -> GlooComm:
        """Enter the group that *unique_id* names, together with all its members."""
        host, port = gloo_id.decode(unique_id)
        timeout = float(os.environ.get(TIMEOUT_VARIABLE, DEFAULT_TIMEOUT))
        group = GlooGroup.connect(host, port, rank=rank, world_size=world_size, timeout=timeout)
        group.join(Deadline.after(timeout))
        return cls(group)

    def broadcast(self, flat: torch.Tensor) -> None:
        """Receive one-dimensional bytes of rank 0: gloo has no bfloat16 or float8, and a broadcast needs none."""
        self._group.broadcast(flat)

    def all_reduce_sum(self, tensor: torch.Tensor) -> None:
        """Sum in place."""
        self._group.all_reduce(tensor)

    def close(self) -> None:
        """Leave the group."""
        self._group.close()


def tensor_at(buffer: ctypes.c_void_p, *, count: int, dtype: torch.dtype) -> torch.Tensor:
    """A view of *count* elements at the address that vLLM hands to the C library."""
    memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(buffer.value or 0)
    return torch.frombuffer(memory, dtype=dtype)


def library_class(wrapper: ModuleType) -> type:
    """Make the stand-in.

    Args:
        wrapper: vLLM's ``pynccl_wrapper`` of the running release; its dtype table says what NCCL takes.

    Returns:
        A subclass of its ``NCCLLibrary``. It loads nothing: a call that is not overridden fails on the missing
        ``_funcs``, by name.
    """
    dtypes = _dtype_table(wrapper)

    class GlooLibrary(wrapper.NCCLLibrary):  # type: ignore[misc,name-defined]  # vLLM's, known only at run time
        def __init__(self, so_file: str | None = None) -> None:
            pass

        def ncclGetRawVersion(self) -> int:  # noqa: N802 - the library's own names
            return 22907

        def ncclCommInitRank(self, *call: Any) -> GlooComm:  # noqa: N802
            world_size, unique_id, rank = call
            return GlooComm.join(bytes(unique_id), rank=rank, world_size=world_size)

        def ncclAllReduce(self, *call: Any) -> None:  # noqa: N802
            source, target, count, datatype, op, comm, _stream = call
            if op != wrapper.ncclRedOpTypeEnum.ncclSum:
                raise NotImplementedError("A weight receiver sums only, and only in its warm-up.")
            received = tensor_at(target, count=count, dtype=dtypes[datatype])
            received.copy_(tensor_at(source, count=count, dtype=dtypes[datatype]))
            comm.all_reduce_sum(received)

        def ncclBroadcast(self, *call: Any) -> None:  # noqa: N802
            _source, target, count, datatype, root, comm, _stream = call
            if root != 0:
                raise NotImplementedError("A weight receiver receives from rank 0 only.")
            comm.broadcast(tensor_at(target, count=count * dtypes[datatype].itemsize, dtype=torch.uint8))

        def ncclCommAbort(self, comm: GlooComm) -> None:  # noqa: N802
            comm.close()

        ncclCommDestroy = ncclCommAbort  # noqa: N815 - up to 0.21

    return GlooLibrary


def _dtype_table(wrapper: ModuleType) -> dict[int, torch.dtype]:
    table: dict[int, torch.dtype] = {}
    for dtype in _DTYPES:
        with contextlib.suppress(ValueError):  # NCCL, as this release knows it, does not take it
            table[wrapper.ncclDataTypeEnum.from_torch(dtype)] = dtype
    return table
