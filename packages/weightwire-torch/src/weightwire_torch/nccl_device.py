"""What is asked of a GPU: a stream for the wire, and marks in streams that can be asked whether they were passed.

Two orders keep the bytes right. What was copied into the ring is there before the wire reads it: there is a mark in the
caller's stream, and the wire waits for it *on the device*. The ring is written again only after the wire has read it:
there is a mark in the wire's stream, and the *caller's thread* waits for it. Would the caller's stream wait, the next
gather would queue behind the wire, and the ranks in that gather would wait for the engine.

Nothing here synchronizes: a thread that sleeps in CUDA can't be woken by a deadline.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from weightwire.errors import ChannelError

_DRIVER = re.compile(r"driver on your system is too old \(found version (\d+)\)")


class Mark(Protocol):
    """A place in a stream."""

    def passed(self) -> bool:
        """Whether everything before it is done. Never blocks.

        Raises:
            ChannelError: the device failed.
        """


class Device(Protocol):
    """One GPU."""

    @property
    def torch_device(self) -> torch.device:
        """As torch calls it."""

    @property
    def wire(self) -> int:
        """The stream that collectives are queued on, as NCCL wants it."""

    def here(self) -> AbstractContextManager[object]:
        """Make it the calling thread's device."""

    def mark_caller(self) -> Mark:
        """Mark the end of what the calling thread has queued on its current stream."""

    def mark_wire(self) -> Mark:
        """Mark the end of what was queued on the wire."""

    def hold_wire(self, mark: Mark) -> None:
        """Let whatever is queued on the wire next wait for *mark*. Returns at once."""

    def keep(self, tensor: torch.Tensor) -> None:
        """See to it that memory which is freed while the wire may read it is not used again before it has been read."""


class CudaMark:
    """An event."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        """Record it."""
        self.event = torch.cuda.Event()  # type: ignore[no-untyped-call] # as the other calls below
        self.event.record(stream)

    def passed(self) -> bool:
        """Ask the event."""
        try:
            return bool(self.event.query())  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise ChannelError(
                f"The GPU failed: {error}",
                hint="a CUDA error leaves the process unusable: restart the trainer; the engine is torn and paused",
            ) from error


class CudaDevice:
    """The calling thread's current GPU."""

    def __init__(self) -> None:
        """Make a stream for the wire on it."""
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        self._wire = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]

    @property
    def wire(self) -> int:
        """A ``cudaStream_t``."""
        return int(self._wire.cuda_stream)

    def here(self) -> AbstractContextManager[object]:
        """The current device belongs to a thread, and the sender's thread begins with GPU 0."""
        return torch.cuda.device(self.torch_device)

    def mark_caller(self) -> CudaMark:
        """An event on the calling thread's current stream."""
        with self.here():
            return CudaMark(torch.cuda.current_stream(self.torch_device))

    def mark_wire(self) -> CudaMark:
        """An event on the wire's stream."""
        with self.here():
            return CudaMark(self._wire)

    def hold_wire(self, mark: Mark) -> None:
        """Queue a wait for the event."""
        if isinstance(mark, CudaMark):
            self._wire.wait_event(mark.event)

    def keep(self, tensor: torch.Tensor) -> None:
        """Tell torch's allocator; it ignores memory that is not its own."""
        tensor.record_stream(self._wire)


def why_no_cuda() -> str:
    """Why this process can't use a GPU, with what to do about it; empty if it can."""
    if torch.version.cuda is None:
        return "this torch was built without CUDA"
    if torch.cuda.is_available():
        return ""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return explain_no_cuda(str(error), torch.version.cuda)
    return "no GPU is visible; look at CUDA_VISIBLE_DEVICES"


def explain_no_cuda(said: str, built_for: str) -> str:
    """What torch says when it can't start CUDA, with what to install.

    Args:
        said: torch's own words.
        built_for: the CUDA release that torch was built for, such as ``"13.0"``.
    """
    found = _DRIVER.search(said)
    if found is None:
        return said.split(". ", maxsplit=1)[0].rstrip(".")
    major, minor = int(found[1]) // 1000, int(found[1]) % 1000 // 10
    return (
        f"the NVIDIA driver is for CUDA {major}.{minor}, and this torch was built for CUDA {built_for}: install a "
        f"torch for CUDA {major} (torch==2.11.0+cu128 on a 12.9 driver), or a newer driver (CUDA 13 needs 580)"
    )
