"""Telling a sink how far a round is, not too often."""

from __future__ import annotations

import logging
import time

from weightwire.messages import Progress
from weightwire.planes import ProgressSink

log = logging.getLogger(__name__)

_INTERVAL = 0.1  # seconds


class Meter:
    """Counts over the windows of a round."""

    def __init__(self) -> None:
        """Tell nobody yet."""
        self._sink: ProgressSink | None = None
        self._before = 0
        self._total = 0
        self._next = 0.0
        self._told = -1

    def begin(self, sink: ProgressSink | None, *, before: int, total: int) -> None:
        """Begin a window.

        Args:
            sink: who is told; nobody if None.
            before: bytes that earlier windows of the round carried.
            total: bytes of the round.
        """
        self._sink = sink
        self._before = before
        self._total = total
        self._told = -1 if before == 0 else self._told

    def report(self, sent: int) -> None:
        """Tell the sink, if it is time or everything was sent. One that raises is logged, and left alone after that.

        Args:
            sent: bytes of this window that were sent.
        """
        now, done = time.monotonic(), self._before + sent
        if self._sink is None or done == self._told or (now < self._next and done < self._total):
            return
        self._next = now + _INTERVAL
        self._told = done
        try:
            self._sink(Progress(sent=done, total=self._total))
        except Exception:
            log.exception("The progress sink raised; it is told no more in this window.")
            self._sink = None
