"""The pump: gather on the caller's thread, pack into the ring, broadcast from a thread of its own.

Every group is gathered exactly once and in order, whatever fails: other ranks are inside the same collectives. What
fails first decides how the window ends:

* the source, or a tensor that is not what the manifest says: the stream is completed with filler, so that the
  receivers leave their collectives and the channel stays in step; then :class:`~weightwire.errors.SourceFailed`;
* the wire, the watch or the clock: the group is broken; then that error.
"""

from __future__ import annotations

import time

from weightwire.errors import SourceFailed
from weightwire.messages import TransferStats
from weightwire.planes import LastingTensors, ProgressSink, WeightSource

from weightwire_torch.broadcasting import Broadcaster, Guard
from weightwire_torch.packer import Packer, Places
from weightwire_torch.progress import Meter
from weightwire_torch.ring import Ring
from weightwire_torch.shipment import Group, Shipment
from weightwire_torch.stream import Stream


class Pump:
    """Sends windows over one transport, through one ring."""

    def __init__(self, broadcaster: Broadcaster, ring: Ring) -> None:
        """Own the ring from here on.

        Args:
            broadcaster: the transport.
            ring: at least as large as the largest pack.
        """
        self._broadcaster = broadcaster
        self._ring = ring
        self._meter = Meter()
        self._places: dict[tuple[int, int], Places] = {}

    def send(
        self, shipment: Shipment, source: WeightSource, *, guard: Guard, progress: ProgressSink | None = None
    ) -> TransferStats:
        """Gather and send one window.

        Raises:
            SourceFailed: the source raised; the stream was completed with filler.
            ChannelError, DeadlineExceeded: the group is broken.
            BaseException: what the guard's watch reports; the group is broken.
        """
        stream = Stream(self._broadcaster, self._ring, packs=shipment.packs, guard=guard)
        self._meter.begin(progress, before=shipment.before, total=shipment.total)
        stream.on_tick = self._meter.report
        lasting = isinstance(source, LastingTensors) and source.lasting
        packer = Packer(self._broadcaster, stream, places=self._places_of(shipment), lasting=lasting)
        under_way = _UnderWay(stream, packer, source)
        try:
            for group in shipment.groups:
                under_way.step(group)
            under_way.end(guard)
        except BaseException:
            stream.abandon()
            raise
        stream.on_tick(stream.sent_bytes)
        return under_way.stats(shipment)

    def _places_of(self, shipment: Shipment) -> Places:
        """Those of the last round, where the same window was cut the same way."""
        window = (shipment.before, shipment.nbytes)
        known = self._places.get(window)
        if known is None or known.packs != shipment.packs:
            known = self._places[window] = Places(shipment.packs)
        return known


class _UnderWay:
    """One window on its way, seen from the caller's thread."""

    def __init__(self, stream: Stream, packer: Packer, source: WeightSource) -> None:
        self._stream = stream
        self._packer = packer
        self._source = source
        self._failure: SourceFailed | None = None
        self._gather_seconds = 0.0

    def step(self, group: Group) -> None:
        """Gather one group, and pack it if that still has a purpose."""
        began = time.perf_counter()
        try:
            gathered = self._source.gather(group.index)
            self._gather_seconds += time.perf_counter() - began
            if self._failure is None and self._stream.open:
                self._packer.add(group.checked(gathered))
        except Exception as error:  # noqa: BLE001 - kept, and raised when all groups are gathered
            self._keep(group, error)

    def _keep(self, group: Group, error: Exception) -> None:
        if self._failure is None and self._stream.error is None:
            self._failure = SourceFailed(
                f"The weight source failed at {group}: {type(error).__name__}: {error}",
                hint="see the error above this one; what the engine received in this round is worthless",
            )
            self._failure.__cause__ = error
            self._stream.fill()

    def end(self, guard: Guard) -> None:
        """Wait until the stream is complete, and raise what went wrong first and worst."""
        try:
            self._stream.finish()
        except BaseException as error:
            if self._failure is not None:
                error.add_note(f"Before that: {self._failure}")
            raise
        failure, self._failure = self._failure, None  # it knows this object, through the frame of the failed step
        if failure is not None:
            raise failure
        if self._stream.late:
            raise guard.deadline.exceeded("gathering tensors; the stream was completed with filler")

    def stats(self, shipment: Shipment) -> TransferStats:
        return TransferStats(
            nbytes=shipment.nbytes,
            collectives=len(shipment.packs),
            gather=self._gather_seconds,
            pack=self._packer.seconds,
            wire=self._stream.wire_seconds,
        )
