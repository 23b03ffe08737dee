"""What the pump asks of a transport, so that one pump serves gloo and NCCL alike.

The caller's thread gathers and packs; a sender thread broadcasts. Between them a transport says when bytes are in
place (``ready``) and when their memory is free again (:meth:`Flight.land`)::

    caller's thread     place, place, …, ready ─┐          place, …
    sender thread                               └ broadcast ─ … ─ land

On CPU every step is complete when it returns. With CUDA, ``place`` is queued on the caller's current stream (behind
the gather and before the next one, so a source may reuse its memory), ``ready`` records an event there, ``broadcast``
makes the wire's stream wait for that event and returns at once, and ``land`` polls the event recorded behind it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from weightwire.deadlines import Deadline
from weightwire.planes import Watch

Ready = Callable[[], None]
"""Called by the sender thread before it broadcasts: makes the wire wait for the bytes. Never blocks for long."""


class Flight(Protocol):
    """A broadcast under way."""

    def land(self) -> None:
        """Return once the bytes were taken and their memory may be written again.

        Raises:
            DeadlineExceeded: the deadline given to ``broadcast`` passed.
            ChannelError: the group is broken, or was aborted.
        """


class Broadcaster(Protocol):
    """The sender's end of a group."""

    @property
    def depth(self) -> int:
        """How many broadcasts may be in flight at once, so that the wire is never idle between two."""

    def place(self, targets: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
        """Copy tensors into their places in a slot, cast where the dtypes differ. Caller's thread.

        Args:
            targets: views of a slot of the ring.
            tensors: as many, of the same shapes; they may change once the caller's stream has gone on.
        """

    def ready(self) -> Ready:
        """Mark that everything placed so far belongs to the pack about to be handed over. Caller's thread."""

    def broadcast(self, flat: torch.Tensor, ready: Ready, deadline: Deadline) -> Flight:
        """Begin to broadcast bytes from rank 0, after *ready*. Sender thread; called in the order of the packs."""

    def abort(self) -> None:
        """Break the group: whoever waits in a flight is freed. Any thread; idempotent, never raises, never blocks."""


@dataclass(frozen=True, slots=True)
class Guard:
    """What may end a wait before what is waited for happens.

    Attributes:
        deadline: by the clock.
        watch: because what runs beside has failed.
    """

    deadline: Deadline
    watch: Watch

    def check(self, doing: str) -> None:
        """Raise if it is time to give up.

        Raises:
            BaseException: what the watch reports.
            DeadlineExceeded: the time is over.
        """
        error = self.watch()
        if error is not None:
            raise error
        self.deadline.check(doing)


def all_well() -> None:
    """A watch over nothing."""


def copy_on_host(targets: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Copy tensors into host memory, on this thread alone.

    torch's own copy splits a large tensor over its thread pool, which takes the cores from the threads that send
    (seen: 0.6 instead of 0.8 of a flat broadcast on two cores); one thread copies several times faster than
    loopback or a network card takes the bytes. And making the views that another library's copy would need takes
    longer than copying a small tensor.
    """
    for target, tensor in zip(targets, tensors, strict=True):
        if tensor.dtype == target.dtype and tensor.device.type == "cpu" and tensor.is_contiguous():
            ctypes.memmove(target.data_ptr(), tensor.data_ptr(), target.nbytes)
        else:
            target.copy_(tensor.detach())
