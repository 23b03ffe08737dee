"""What planes have in common whose rank 0 sends by a pump: a group that is joined, sent to, and left."""

from __future__ import annotations

from typing import ClassVar, Generic, Protocol, TypeVar

from weightwire.deadlines import Deadline
from weightwire.errors import ChannelError
from weightwire.messages import TransferPlan, TransferStats, Window
from weightwire.planes import ProgressSink, Watch, WeightSource

from weightwire_torch.broadcasting import Guard
from weightwire_torch.pump import Pump
from weightwire_torch.shipment import Shipment


class Group(Protocol):
    """The sender's membership."""

    def join(self, deadline: Deadline, watch: Watch) -> None:
        """Enter, together with all others."""

    def abort(self) -> None:
        """Leave at once. Any thread; idempotent, never raises, never blocks."""

    def close(self, deadline: Deadline) -> None:
        """Leave in order, within a few seconds. Idempotent, never raises."""


G = TypeVar("G", bound=Group)


class PumpedPlane(Generic[G]):
    """All of a :class:`~weightwire.planes.DataPlane` but its preparation, which sets the group and the pump."""

    spoken: ClassVar[str]
    """The transport, as people call it."""

    def __init__(self) -> None:
        """Open nothing yet."""
        self.progress: ProgressSink | None = None
        self._group: G | None = None
        self._pump: Pump | None = None

    def join(self, deadline: Deadline, watch: Watch) -> None:
        """Meet the workers."""
        self._opened().join(deadline, watch)

    def send(
        self, plan: TransferPlan, window: Window, source: WeightSource, deadline: Deadline, watch: Watch
    ) -> TransferStats:
        """Gather and send one window."""
        if self._pump is None:
            raise self._not_open()
        guard = Guard(deadline, watch)
        return self._pump.send(Shipment.of(plan, window), source, guard=guard, progress=self.progress)

    def abort(self) -> None:
        """Leave at once."""
        group, self._group, self._pump = self._group, None, None
        if group is not None:
            group.abort()

    def close(self, deadline: Deadline) -> None:
        """Leave in order, and free the ring."""
        group, self._group, self._pump = self._group, None, None
        if group is not None:
            group.close(deadline)

    def _opened(self) -> G:
        if self._group is None:
            raise self._not_open()
        return self._group

    def _not_open(self) -> ChannelError:
        return ChannelError(f"There is no open {self.spoken} channel.", hint="call session.recover()")
