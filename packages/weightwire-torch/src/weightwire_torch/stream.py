"""One window on its way: the caller's thread hands packs over, a thread of its own broadcasts them.

The sender thread always brings the stream to an end that the receivers can live with, whatever the caller's thread
does: if nothing more is handed over (the source failed, or hangs in a gather of its own until the deadline is near)
it completes the stream with filler, and if the wire fails it breaks the group.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import torch
from weightwire.calls import Call

from weightwire_torch.broadcasting import Broadcaster, Flight, Guard, Ready
from weightwire_torch.framing import Pack
from weightwire_torch.ring import Ring

_TICK = 0.02  # seconds between two looks at the watch while nothing else wakes a waiter
_RESERVE_SHARE = 0.1  # of the deadline, kept for the filler when the caller's thread does not come back
_LONGEST_RESERVE = 10.0  # seconds


class Stream:
    """The packs of one window, in order."""

    def __init__(self, broadcaster: Broadcaster, ring: Ring, *, packs: Sequence[Pack], guard: Guard) -> None:
        """Start the sender thread.

        Args:
            broadcaster: the transport.
            ring: where packs are put together.
            packs: what will be handed over.
            guard: ends every wait.
        """
        self.error: BaseException | None = None
        self.late = False
        self.sent = 0
        self.sent_bytes = 0
        self.wire_seconds = 0.0
        self.on_tick: Callable[[int], None] = _nobody
        self._broadcaster = broadcaster
        self._ring = ring
        self._packs = packs
        self._regions = ring.lay_out(packs)
        self._guard = guard
        self._filler_from = guard.deadline.at - min(_RESERVE_SHARE * guard.deadline.seconds, _LONGEST_RESERVE)
        self._news = threading.Condition()
        self._handed: deque[tuple[torch.Tensor, Ready]] = deque()
        self._handed_count = 0
        self._filling = False
        self._flights: deque[tuple[Flight, int]] = deque()
        self._took_off = 0.0
        self._call = Call(self._run, doing="sending tensors")

    # The caller's thread.

    @property
    def device(self) -> torch.device:
        """Where bytes must be to travel."""
        return self._ring.device

    @property
    def open(self) -> bool:
        """Whether what is handed over is still sent."""
        return self.error is None and not self._filling

    def room(self, index: int) -> torch.Tensor:
        """Wait until the memory for pack *index* is free.

        Raises:
            BaseException: what stopped the stream.
        """
        region = self._regions[index]
        self._await(region.after)
        return self._ring.at(region)

    def hand_over(self, flat: torch.Tensor, ready: Ready) -> None:
        """Give the next pack to the sender thread. Its memory must stay as it is until the pack was sent.

        Raises:
            BaseException: what stopped the stream.
        """
        self._check("sending tensors")
        self._await(self._handed_count - self._ring.slots + 1)
        with self._news:
            self._handed.append((flat, ready))
            self._handed_count += 1
            self._news.notify_all()

    def settle(self) -> None:
        """Wait until everything handed over was sent.

        Raises:
            BaseException: what stopped the stream.
        """
        self._await(self._handed_count)

    def fill(self) -> None:
        """Hand over nothing more: the sender thread completes the stream with filler."""
        with self._news:
            self._filling = True
            self._news.notify_all()

    def finish(self) -> None:
        """Wait until the stream is complete.

        Raises:
            BaseException: what stopped it.
        """
        self._await(len(self._packs))

    def abandon(self) -> None:
        """Let the receivers out, when the caller's thread leaves in mid-stream (an interrupt, for one)."""
        if self.error is None and self.sent < len(self._packs):
            self.fill()
            with contextlib.suppress(Exception):  # the interrupt is what shall be seen
                self.finish()

    def _await(self, sent: int) -> None:
        """Wait until *sent* packs were sent."""
        while True:
            with self._news:
                if self.error is None and self.sent < sent:
                    self._news.wait(_TICK)
                if self.error is not None:
                    raise self.error
                arrived = self.sent >= sent
            self.on_tick(self.sent_bytes)
            if arrived:
                return
            self._check("sending tensors")

    # The sender thread.

    def _run(self) -> None:
        try:
            for pack in self._packs:
                self._make_room()
                flat, ready = self._next(pack)
                self._take_off(flat, ready)
            while self._flights:
                self._land()
        except BaseException as error:  # noqa: BLE001 - kept for the caller's thread, which raises it
            self._stop(error)

    def _make_room(self) -> None:
        """Land flights until another may take off, and all of them before the thread goes idle."""
        while self._flights and (len(self._flights) >= self._broadcaster.depth or not self._handed):
            self._land()

    def _next(self, pack: Pack) -> tuple[torch.Tensor, Ready]:
        """The next pack handed over, or filler; waits for one of the two."""
        while True:
            with self._news:
                if not self._handed and not self._filling:
                    self._news.wait(_TICK)
                if not self._handed and not self._filling and time.monotonic() >= self._filler_from:
                    self.late = self._filling = True
                if self._filling:  # also instead of what was handed over: order must hold, contents need not
                    return self._ring.filler(pack.nbytes), _nothing
                if self._handed:
                    return self._handed.popleft()
            self._check("waiting for tensors to be gathered")

    def _take_off(self, flat: torch.Tensor, ready: Ready) -> None:
        if not self._flights:
            self._took_off = time.perf_counter()
        self._flights.append((self._broadcaster.broadcast(flat, ready, self._guard.deadline), flat.numel()))

    def _land(self) -> None:
        flight, nbytes = self._flights.popleft()
        flight.land()
        with self._news:
            self.sent += 1
            self.sent_bytes += nbytes
            if not self._flights:
                self.wire_seconds += time.perf_counter() - self._took_off
            self._news.notify_all()

    # Both.

    def _check(self, doing: str) -> None:
        try:
            self._guard.check(doing)
        except BaseException as error:
            self._stop(error)
            raise

    def _stop(self, error: BaseException) -> None:
        """Break the group, so that no thread and no peer waits in it; only the first error is kept."""
        with self._news:
            self.error = self.error or error
            self._news.notify_all()
        self._broadcaster.abort()


def _nothing() -> None:
    """Bytes in host memory are ready at once."""


def _nobody(sent_bytes: int) -> None:
    """Is not told."""
    del sent_bytes
