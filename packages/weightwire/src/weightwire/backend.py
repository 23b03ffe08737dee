"""The one backend: the lifecycle hooks over control planes and a data plane. It runs on the sender."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from weightwire import plan as planning
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.engines import UPDATING_MARK, Engine, Engines
from weightwire.errors import ControlError, SourceFailed, StateError, UpdateFailed
from weightwire.fanout import first_failure, wait_for_all
from weightwire.gathering import gather_and_drop, groups_from
from weightwire.hookspecs import hookimpl
from weightwire.messages import (
    CachePolicy,
    ChannelInfo,
    ChannelRequest,
    ChannelSpec,
    EngineInfo,
    Manifest,
    PackGeometry,
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

log = logging.getLogger(__name__)

PlaneChooser = Callable[[Sequence[EngineInfo]], tuple[str, DataPlane]]


class SenderBackend:
    """Holds the engines and the open data plane of one session."""

    def __init__(self, engines: Engines, choose_plane: PlaneChooser, options: Options) -> None:
        """Connect nothing yet.

        Args:
            engines: the engines, in the order of their rank offsets.
            choose_plane: makes the data plane, once it is known what the engines are.
            options: the session's.
        """
        self.engines = engines
        self.progress: ProgressSink | None = None
        self._choose_plane = choose_plane
        self._options = options
        self._plane: DataPlane | None = None

    @hookimpl
    def weightwire_connect(self, deadline: Deadline) -> Sequence[EngineInfo]:
        """Probe every engine."""
        return self.engines.all(lambda engine: engine.probe(deadline), "probing the engines", deadline)

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

        def pause(engine: Engine) -> None:
            engine.held = True
            engine.control.pause(mode, cache, deadline)

        self.engines.all(pause, "pausing the engines", deadline)
        return True

    @hookimpl
    def weightwire_begin_update(self, plan: TransferPlan, deadline: Deadline) -> bool:
        """Mark every engine as updating, then open the update."""

        def begin(engine: Engine) -> None:
            if plan.mode is RoundMode.DIRECT:
                engine.control.mark(UPDATING_MARK.format(round=plan.round_id), deadline)
            engine.touched = plan.mode is RoundMode.DIRECT
            engine.control.begin(plan, deadline)

        self.engines.all(begin, "opening the update", deadline)
        return True

    @hookimpl
    def weightwire_transfer(self, plan: TransferPlan, source: WeightSource, deadline: Deadline) -> TransferStats:
        """Send window after window; after an error gather the rest, since other ranks do."""
        total = TransferStats()
        for window in plan.windows:
            try:
                total += self._send(plan, window, source, deadline)
            except Exception:
                gather_and_drop(source, groups_from(plan.manifest, window.stop))
                raise
        return total

    @hookimpl
    def weightwire_commit_update(self, plan: TransferPlan, stats: TransferStats, deadline: Deadline) -> bool:
        """Finish on every engine."""
        del stats

        def finish(engine: Engine) -> None:
            engine.touched = True
            engine.control.finish(plan, deadline)
            engine.touched = False
            engine.state = EngineState.WHOLE

        self.engines.all(finish, "committing the update", deadline)
        return True

    @hookimpl
    def weightwire_verify_update(self, receipt: Receipt, deadline: Deadline) -> Verification:
        """Read the version back, where the server keeps one."""

        def read_back(engine: Engine) -> str:
            engine.touched = True
            held = engine.control.weight_version(deadline)
            if held not in {None, receipt.version}:
                raise UpdateFailed(f"The engine says it holds version {held!r}, not {receipt.version!r}.")
            engine.touched = False
            return f"{engine.url} says it holds version {held}" if held is not None else ""

        said = self.engines.all(read_back, "reading the versions back", deadline)
        return Verification(checked=tuple(filter(None, said)))

    @hookimpl
    def weightwire_resume(self, deadline: Deadline) -> bool:
        """Let every whole engine go on; a torn one is never touched."""

        def resume(engine: Engine) -> None:
            if engine.state is EngineState.WHOLE:
                engine.control.resume(deadline)
                engine.held = False

        self.engines.all(resume, "resuming the engines", deadline)
        return True

    @hookimpl
    def weightwire_abort_update(
        self, plan: TransferPlan, error: BaseException, deadline: Deadline
    ) -> dict[str, EngineState]:
        """Drop the channel unless it is in step, and settle what each engine holds."""
        if not isinstance(error, SourceFailed):
            self._drop_plane()
        self.engines.all(lambda engine: _settle(engine, plan, deadline), "settling the engines", deadline)
        return self.engines.states()

    @hookimpl
    def weightwire_recover(self, deadline: Deadline) -> bool:
        """Pause and flush every torn engine."""

        def recover(engine: Engine) -> None:
            if engine.state is EngineState.WHOLE:
                return
            engine.control.pause(PauseMode.KEEP, CachePolicy.RESET, deadline)
            engine.held = True
            engine.control.flush(deadline)

        lost = [engine.url for engine in self.engines if engine.state is EngineState.LOST]
        if lost:
            raise StateError(f"Lost, and beyond recovery: {', '.join(lost)}.", hint="restart the server, then push")
        self.engines.all(recover, "recovering the engines", deadline)
        return True

    @hookimpl
    def weightwire_close_channel(self, deadline: Deadline) -> bool:
        """Leave the group on both sides."""
        plane, self._plane = self._plane, None
        if plane is None:
            return True
        try:
            self.engines.all(lambda engine: engine.control.close_channel(deadline), "closing the channel", deadline)
        except ControlError:
            log.warning("The engines could not be told that the channel is closed.", exc_info=True)
        plane.close(deadline)
        return True

    @property
    def channel_open(self) -> bool:
        """Whether there is a group to send to."""
        return self._plane is not None

    def close(self) -> None:
        """Drop everything at once. Idempotent."""
        self._drop_plane()
        for engine in self.engines:
            engine.control.close()

    def _drop_plane(self) -> None:
        plane, self._plane = self._plane, None
        if plane is not None:
            plane.abort()

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
            calls.append(engine.control.init_channel(request, deadline))
            offset += info.world_size
        plane.join(deadline, lambda: first_failure(calls))
        wait_for_all(calls, deadline)

    def _send(self, plan: TransferPlan, window: Window, source: WeightSource, deadline: Deadline) -> TransferStats:
        if self._plane is None:
            raise StateError("There is no open channel to send on.", hint="call session.recover()")
        calls = [engine.control.update(plan, window, deadline) for engine in self.engines]
        try:
            stats = self._plane.send(plan, window, source, deadline, lambda: first_failure(calls))
        except SourceFailed as failed:
            _note_refusals(calls, failed, deadline)
            raise
        wait_for_all(calls, deadline)
        return stats


def _note_refusals(calls: Sequence[Call[None]], failed: SourceFailed, deadline: Deadline) -> None:
    """Let the receivers of the filler come to an end; what they say of it is only of interest to a reader."""
    try:
        wait_for_all(calls, deadline)
    except ControlError as error:
        failed.add_note(f"and the engine, of the filler: {error}")


def _settle(engine: Engine, plan: TransferPlan, deadline: Deadline) -> None:
    if engine.touched:
        engine.touched = False
        engine.tear(plan, deadline)
    elif plan.mode is RoundMode.STAGED:
        engine.control.abort_update(plan, deadline)


def _mode(engines: Sequence[EngineInfo]) -> RoundMode:
    return RoundMode.STAGED if engines and all(info.staged for info in engines) else RoundMode.DIRECT
