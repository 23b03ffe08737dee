"""The one backend: the lifecycle hooks over control planes and a data plane. It runs on the sender."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from weightwire import plan as planning
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.engine import Engine
from weightwire.engines import Engines
from weightwire.errors import ControlError, SourceFailed, StateError
from weightwire.fanout import first_failure, wait_for_all
from weightwire.gathering import Gate, open_gate
from weightwire.hookspecs import hookimpl
from weightwire.messages import (
    CachePolicy,
    ChannelInfo,
    ChannelRequest,
    ChannelSpec,
    EngineInfo,
    PauseMode,
    Receipt,
    Rendezvous,
    RoundMode,
    TransferPlan,
    TransferStats,
    Verification,
    Window,
)
from weightwire.options import Options
from weightwire.planes import DataPlane, ProgressSink, ReportsProgress, WeightSource
from weightwire.states import EngineState
from weightwire.tensors import Manifest, PackGeometry

log = logging.getLogger(__name__)

PlaneChooser = Callable[[Sequence[EngineInfo]], tuple[str, DataPlane]]


class SenderBackend:
    """Holds the engines and the open data plane of one session.

    Attributes:
        engines: the engines.
        progress: told of bytes on their way.
        gate: passed between two windows.
    """

    def __init__(self, engines: Engines, choose_plane: PlaneChooser, options: Options) -> None:
        """Connect nothing yet.

        Args:
            engines: the engines, in the order of their rank offsets.
            choose_plane: makes the data plane, once it is known what the engines are.
            options: the session's.
        """
        self.engines = engines
        self.progress: ProgressSink | None = None
        self.gate: Gate = open_gate
        self._choose_plane = choose_plane
        self._options = options
        self._plane: DataPlane | None = None
        self._under_way = False

    @hookimpl
    def weightwire_connect(self, deadline: Deadline) -> Sequence[EngineInfo]:
        """Probe every engine."""
        return self.engines.probe(deadline)

    @hookimpl
    def weightwire_open_channel(
        self, engines: Sequence[EngineInfo], manifest: Manifest, deadline: Deadline
    ) -> ChannelInfo:
        """Prepare the plane, send the init calls, join while they are in flight."""
        name, plane = self._choose_plane(engines)
        geometry = planning.geometry(manifest, engines, self._options)
        spec = self._spec(engines, manifest, geometry)
        try:
            self._meet(plane, plane.prepare(spec, deadline), spec, deadline)
        except BaseException:
            plane.abort()
            raise
        self._plane = plane
        if isinstance(plane, ReportsProgress):
            plane.progress = self.progress
        return ChannelInfo(
            data_plane=name, world_size=spec.world_size, digest=manifest.digest, geometry=geometry, mode=_mode(engines)
        )

    @hookimpl
    def weightwire_pause(self, mode: PauseMode, cache: CachePolicy, deadline: Deadline) -> bool:
        """Pause every engine."""
        self.engines.all(lambda engine: engine.pause(mode, cache, deadline), "pausing the engines", deadline)
        return True

    @hookimpl
    def weightwire_begin_update(self, plan: TransferPlan, deadline: Deadline) -> bool:
        """Mark every engine as updating, then open the update."""
        self.engines.all(lambda engine: engine.begin(plan, deadline), "opening the update", deadline)
        return True

    @hookimpl
    def weightwire_transfer(self, plan: TransferPlan, source: WeightSource, deadline: Deadline) -> TransferStats:
        """Send window after window; between two of them all ranks agree to go on."""
        total = TransferStats()
        for window in plan.windows:
            if window.index:
                self.gate(None, deadline)
            total += self._send(plan, window, source, deadline)
        return total

    @hookimpl
    def weightwire_commit_update(self, plan: TransferPlan, stats: TransferStats, deadline: Deadline) -> bool:
        """Finish on every engine."""
        del stats
        self.engines.all(lambda engine: engine.finish(plan, deadline), "committing the update", deadline)
        return True

    @hookimpl
    def weightwire_verify_update(self, receipt: Receipt, deadline: Deadline) -> Verification:
        """Read the version back, where the server keeps one."""
        said = self.engines.all(
            lambda engine: engine.read_back(receipt.version, deadline), "reading the versions back", deadline
        )
        return Verification(checked=tuple(filter(None, said)))

    @hookimpl
    def weightwire_resume(self, deadline: Deadline) -> bool:
        """Let every whole engine go on; a torn one is never touched."""
        self.engines.all(lambda engine: engine.resume(deadline), "resuming the engines", deadline)
        return True

    @hookimpl
    def weightwire_abort_update(
        self, plan: TransferPlan, error: BaseException, deadline: Deadline
    ) -> dict[str, EngineState]:
        """Drop the channel unless it is in step, and settle what each engine holds."""
        del error
        if self._under_way:
            self.drop_channel()
        self.engines.quiesce(deadline.at_most(deadline.remaining() / 2))
        inner = deadline.at_most(0.9 * deadline.remaining())  # so that what an engine did not answer is settled too
        self.engines.all(lambda engine: engine.settle(plan, inner), "settling the engines", deadline)
        return self.engines.states()

    @hookimpl
    def weightwire_recover(self, deadline: Deadline) -> bool:
        """Pause and flush every torn engine."""
        self.engines.all(lambda engine: engine.mend(deadline), "recovering the engines", deadline)
        return True

    @hookimpl
    def weightwire_close_channel(self, deadline: Deadline) -> bool:
        """Leave the group on both sides, whichever of them is still in it."""
        try:
            self.engines.all(lambda engine: _leave(engine, deadline), "closing the channel", deadline)
        except Exception as error:  # this side leaves all the same
            log.warning("The engines could not be told that the channel is closed: %s", error)
            log.debug("Where that was:", exc_info=True)
        plane, self._plane = self._plane, None
        if plane is not None:
            plane.close(deadline)
        return True

    @property
    def channel_open(self) -> bool:
        """Whether there is a group to send to."""
        return self._plane is not None

    def disown(self, deadline: Deadline) -> None:
        """Let go of engines that another client has pushed to since: they have left this channel, and joined another.

        To tell them to leave would break that one.
        """
        left = self.engines.all(lambda engine: engine.as_left(deadline), "asking the engines", deadline)
        for engine, still_ours in zip(self.engines, left, strict=True):
            engine.joined = engine.joined and still_ours

    def drop_channel(self) -> None:
        """Leave the group at once, whatever is in flight. Idempotent."""
        plane, self._plane = self._plane, None
        self._under_way = False
        if plane is not None:
            plane.abort()

    def close(self) -> None:
        """Drop everything at once. Idempotent."""
        self.drop_channel()
        for engine in self.engines.members:
            engine.control.close()

    def _spec(self, engines: Sequence[EngineInfo], manifest: Manifest, geometry: PackGeometry) -> ChannelSpec:
        return ChannelSpec(
            manifest=manifest,
            geometry=geometry,
            world_size=1 + sum(info.world_size for info in engines),
            engines=tuple(engines),
            address=self._options.advertise,
            port=self._options.port,
            interface=self._options.interface,
            timeout=self._options.timeout,
            library=self._options.nccl_library,
        )

    def _meet(self, plane: DataPlane, rendezvous: Rendezvous, spec: ChannelSpec, deadline: Deadline) -> None:
        calls: list[Call[None]] = []
        offset = 1
        for engine, info in zip(self.engines, spec.engines, strict=True):
            request = ChannelRequest(
                rendezvous=rendezvous, rank_offset=offset, geometry=spec.geometry, manifest=spec.manifest
            )
            engine.joined = True
            calls.append(self.engines.remember(engine.control.init_channel(request, deadline)))
            offset += info.world_size
        plane.join(deadline, lambda: first_failure(calls))
        wait_for_all(calls, deadline)

    def _send(self, plan: TransferPlan, window: Window, source: WeightSource, deadline: Deadline) -> TransferStats:
        if self._plane is None:
            raise StateError("There is no open channel to send on.", hint="call session.recover()")
        self._under_way = True
        calls = [self.engines.remember(engine.control.update(plan, window, deadline)) for engine in self.engines]
        try:
            stats = self._plane.send(plan, window, source, deadline, lambda: first_failure(calls))
        except SourceFailed as failed:
            self._under_way = not _took_the_filler(calls, failed, deadline)
            raise
        wait_for_all(calls, deadline)
        self._under_way = False
        return stats


def _took_the_filler(calls: Sequence[Call[None]], failed: SourceFailed, deadline: Deadline) -> bool:
    """Wait for the receivers of the filler. One that did not take all of it leaves the channel out of step."""
    try:
        wait_for_all(calls, deadline)
    except ControlError as error:
        failed.add_note(f"and the engine, of the filler: {error}")
        return False
    return True


def _leave(engine: Engine, deadline: Deadline) -> None:
    if engine.joined:
        engine.control.close_channel(deadline)
        engine.joined = False


def _mode(engines: Sequence[EngineInfo]) -> RoundMode:
    return RoundMode.STAGED if engines and all(info.staged for info in engines) else RoundMode.DIRECT
