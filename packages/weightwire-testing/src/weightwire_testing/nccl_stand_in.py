"""NCCL and a GPU without either: what :mod:`weightwire_torch.nccl_plane` needs of both, over gloo and in host memory.

It is as strict as the originals where carelessness is punished there: a communicator takes no call while the last one
is under way, a handle is dead after it was freed, work on a stream happens later and in order, and a collective whose
peer is gone never ends by itself. What it can't show: kernels that really run at once, and what NCCL does to a network.
"""

from __future__ import annotations

import ctypes
import itertools
import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch._C._distributed_c10d import TCPStore
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import ChannelError, WeightwireError
from weightwire_torch import gloo
from weightwire_torch.gloo_group import GlooGroup
from weightwire_torch.nccl_device import Mark
from weightwire_torch.nccl_errors import Result, failed
from weightwire_torch.nccl_group import Transport

from weightwire_testing import gloo_id

LOOPBACK = "127.0.0.1"
DEFAULT_TIMEOUT = 60.0  # seconds a collective may take
ANY_SIZE = 2  # of a group whose size is not known yet; a store that waits for nobody does not look at it


class HostMark:
    """A place in a stream."""

    def __init__(self) -> None:
        """Not passed."""
        self.event = threading.Event()

    def passed(self) -> bool:
        """Whether the stream came by."""
        return self.event.is_set()


class HostStream:
    """Work in order, on a thread of its own."""

    def __init__(self) -> None:
        """Start it."""
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="weightwire: a stand-in for a stream", daemon=True).start()

    def add(self, work: Callable[[], None]) -> None:
        """Queue."""
        self._work.put(work)

    def mark(self) -> HostMark:
        """Mark the end of what was queued."""
        mark = HostMark()
        self.add(mark.event.set)
        return mark

    def _run(self) -> None:
        while True:
            self._work.get()()


class HostDevice:
    """Implements :class:`~weightwire_torch.nccl_device.Device` with one stream beside the caller's thread."""

    torch_device = torch.device("cpu")
    wire = 1

    def __init__(self) -> None:
        """Make the stream."""
        self.stream = HostStream()
        self.kept: list[int] = []

    def here(self) -> AbstractContextManager[object]:
        """There is only one."""
        return nullcontext()

    def mark_caller(self) -> Mark:
        """What the caller's thread did is done."""
        mark = HostMark()
        mark.event.set()
        return mark

    def mark_wire(self) -> Mark:
        """The end of what was queued on the wire."""
        return self.stream.mark()

    def hold_wire(self, mark: Mark) -> None:
        """Let the stream wait."""
        if isinstance(mark, HostMark):
            self.stream.add(lambda: _wait(mark.event))

    def keep(self, tensor: torch.Tensor) -> None:
        """Note that it was asked for."""
        self.kept.append(tensor.data_ptr())


class GlooComm:
    """One communicator."""

    def __init__(self, group: GlooGroup) -> None:
        """Begin to join."""
        self.group = group
        self.error = Result.SUCCESS
        self.gone = threading.Event()
        self.last: Call[None] | None = Call(self._join, doing="joining")

    def state(self) -> int:
        """As ``ncclCommGetAsyncError`` tells it."""
        if self.error is not Result.SUCCESS:
            return self.error
        return Result.SUCCESS if self.last is None or self.last.done else Result.IN_PROGRESS

    def launch(self, stream: HostStream, work: Callable[[], None]) -> None:
        """Queue a collective on *stream*, a little later, as NCCL does from a thread of its own.

        Raises:
            ChannelError: the last call is still under way, or the communicator is broken.
        """
        if self.state() != Result.SUCCESS:
            raise failed("calling it", "invalid usage", last="the previous operation has not returned ncclSuccess")
        self.last = Call(lambda: stream.add(lambda: self._collective(work)), doing="launching")

    def leave(self) -> None:
        """Free it: whoever is inside comes out."""
        self.gone.set()
        self.group.abort()

    def _join(self) -> None:
        try:
            self.group.join(Deadline.after(self.group.timeout), self._freed)
        except WeightwireError:
            self.error = Result.REMOTE_ERROR

    def _freed(self) -> BaseException | None:
        return ChannelError("The communicator was freed.") if self.gone.is_set() else None

    def _collective(self, work: Callable[[], None]) -> None:
        """A kernel whose peer is gone spins until it is aborted."""
        try:
            work()
        except WeightwireError:
            _wait(self.gone)


class GlooNccl:
    """Implements :class:`~weightwire_torch.nccl_communicator.Nccl`.

    Attributes:
        version: what it says it is.
        refusal: what a join ends with, in NCCL's words; empty to join.
        comms: by handle; freed ones are not in it.
    """

    def __init__(self, device: HostDevice, *, version: str = "2.29.7", timeout: float = DEFAULT_TIMEOUT) -> None:
        """Own nothing yet."""
        self.version = version
        self.refusal = ""
        self.comms: dict[int, GlooComm] = {}
        self._device = device
        self._timeout = timeout
        self._handles = itertools.count(1)
        self._stores: dict[bytes, TCPStore] = {}

    def unique_id(self) -> bytes:
        """Listen, and put the address into the id, as NCCL does."""
        store = gloo.hosted_store(LOOPBACK, 0, self._member(0, ANY_SIZE))
        made = gloo_id.encode(LOOPBACK, int(store.port))
        self._stores[made] = store
        return made

    def enter(self, unique_id: bytes, *, rank: int, world_size: int) -> int:
        """Begin to join: rank 0 with the store it listens at, the others by its address."""
        handle = next(self._handles)
        member = self._member(rank, world_size)
        if unique_id in self._stores:
            group = GlooGroup(self._stores.pop(unique_id), member, gloo.devices("", LOOPBACK))
        else:
            host, port = gloo_id.decode(unique_id)
            group = GlooGroup.connect(host, port, rank=rank, world_size=world_size, timeout=self._timeout)
        self.comms[handle] = GlooComm(group)
        return handle

    def state(self, handle: int) -> int:
        """Whether the last call is done."""
        return Result.INVALID_USAGE if self.refusal else self._comm(handle).state()

    def add_up(self, handle: int, pointer: int, *, stream: int) -> None:
        """Sum one float32."""
        del stream
        group = self._comm(handle).group
        self._launch(handle, lambda: group.all_reduce(tensor_at(pointer, 4).view(torch.float32)))

    def broadcast(self, handle: int, pointer: int, *, nbytes: int, stream: int) -> None:
        """Broadcast bytes."""
        del stream
        group = self._comm(handle).group
        self._launch(handle, lambda: group.broadcast(tensor_at(pointer, nbytes)))

    def finalize(self, handle: int) -> None:
        """Nothing is left to do: collectives have landed."""
        self._comm(handle)

    def destroy(self, handle: int) -> None:
        """Free it."""
        self._comm(handle)
        self.comms.pop(handle).leave()

    abort = destroy

    def words(self, result: int) -> str:
        """The name of a result."""
        return Result(result).name.lower().replace("_", " ")

    def last_words(self) -> str:
        """The refusal."""
        return self.refusal

    def _launch(self, handle: int, work: Callable[[], None]) -> None:
        self._comm(handle).launch(self._device.stream, work)

    def _comm(self, handle: int) -> GlooComm:
        if handle not in self.comms:
            raise AssertionError(f"Communicator {handle} is used after it was freed.")
        return self.comms[handle]

    def _member(self, rank: int, world_size: int) -> gloo.Member:
        return gloo.Member(rank=rank, world_size=world_size, timeout=self._timeout, prefix="weightwire")


def stand_in(*, version: str = "2.29.7", timeout: float = DEFAULT_TIMEOUT) -> Transport:
    """A transport for :class:`~weightwire_torch.nccl_plane.NcclPlane`."""
    device = HostDevice()
    return Transport(nccl=GlooNccl(device, version=version, timeout=timeout), device=device)


def tensor_at(pointer: int, nbytes: int) -> torch.Tensor:
    """A view of the bytes at an address."""
    return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(pointer), dtype=torch.uint8)


def _wait(event: threading.Event) -> None:
    """Wait, as a GPU would, but not for ever."""
    event.wait(DEFAULT_TIMEOUT)
