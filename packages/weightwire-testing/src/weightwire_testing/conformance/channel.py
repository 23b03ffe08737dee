"""A channel that the data plane suite opened: the plane under test on one side, receivers on the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.messages import (
    ChannelSpec,
    EngineInfo,
    EngineKind,
    PackGeometry,
    ReceiverLimits,
    TransferPlan,
    TransferStats,
    Window,
)
from weightwire.planes import DataPlane, Watch

from weightwire_testing.conformance.receiving import Answer, Job, Leave, Receive, ReceiverProcess, answers
from weightwire_testing.conformance.tensors import BUFFER_BYTES, TensorSource

SECONDS = 20.0
"""How long what should work may take."""


def all_well() -> None:
    """A watch over nothing."""


def spec(source: TensorSource, receivers: int, *, packed: bool, timeout: float = SECONDS) -> ChannelSpec:
    """What a session would give to ``prepare``."""
    manifest = source.manifest()
    engine = EngineInfo(
        url="http://127.0.0.1:1",
        engine="conformance",
        version="1.0",
        dialect="1",
        control_plane="conformance",
        backend="conformance",
        kind=EngineKind.OURS,
        world_size=receivers,
        limits=ReceiverLimits(),
    )
    geometry = PackGeometry(packed=packed, buffer_bytes=BUFFER_BYTES, num_buffers=2)
    return ChannelSpec(
        manifest=manifest, geometry=geometry, world_size=receivers + 1, engines=(engine,), timeout=timeout
    )


@dataclass(slots=True)
class Channel:
    """An open channel.

    Attributes:
        plane: the plane under test, joined.
        spec: what it was opened with.
        receivers: the processes that joined, in the order of their ranks.
        rounds: rounds sent so far.
    """

    plane: DataPlane
    spec: ChannelSpec
    receivers: list[ReceiverProcess]
    rounds: int = field(default=0)

    @classmethod
    def open(cls, plane: DataPlane, described: ChannelSpec, receivers: Sequence[ReceiverProcess]) -> Channel:
        """Prepare, have the receivers join, join."""
        deadline = Deadline.after(SECONDS)
        meeting = plane.prepare(described, deadline)
        joining = [
            one.tell(Job(meeting, rank, described.geometry, described.manifest.tensors))
            for rank, one in enumerate(receivers, start=1)
        ]
        plane.join(deadline, lambda: next((error for call in joining if (error := call.failure())), None))
        answers(joining, deadline)
        return cls(plane, described, list(receivers))

    def plan(self, *windows: tuple[int, int]) -> TransferPlan:
        """A round of these windows; one over everything if there are none."""
        self.rounds += 1
        ranges = windows or ((0, len(self.spec.manifest.tensors)),)
        return TransferPlan(
            round_id=f"round-{self.rounds}",
            version=str(self.rounds),
            manifest=self.spec.manifest,
            windows=tuple(Window(index, start, stop) for index, (start, stop) in enumerate(ranges)),
            geometry=self.spec.geometry,
        )

    def receive(self, window: Window) -> list[Call[Answer]]:
        """Have every receiver receive *window*."""
        tensors = self.spec.manifest.tensors[window.start : window.stop]
        return [one.tell(Receive(tensors)) for one in self.receivers]

    def send(
        self,
        plan: TransferPlan,
        window: Window,
        source: TensorSource,
        *,
        seconds: float = SECONDS,
        watch: Watch = all_well,
    ) -> TransferStats:
        """Send one window."""
        return self.plane.send(plan, window, source, Deadline.after(seconds), watch)

    def round(self, source: TensorSource, *windows: tuple[int, int]) -> tuple[list[dict[str, str]], TransferStats]:
        """Send a whole round; the digests that each receiver made, and what the plane says it did."""
        plan, stats = self.plan(*windows), TransferStats()
        got: list[dict[str, str]] = [{} for _ in self.receivers]
        for window in plan.windows:
            receiving = self.receive(window)
            stats += self.send(plan, window, source)
            for digests, answer in zip(got, answers(receiving, Deadline.after(SECONDS)), strict=True):
                digests.update(answer.digests)
        return got, stats

    def close(self) -> None:
        """Leave on both sides; whatever fails now was tested before."""
        self.plane.close(Deadline.after(SECONDS))
        for one in self.receivers:
            if one.alive:
                one.tell(Leave()).wait(SECONDS)
