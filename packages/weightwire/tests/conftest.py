"""Planes and sources without a network or tensors, for what the core itself decides.

They keep a log of every call, in order, and fail where a test tells them to. What they stand for runs for real in the
suites of weightwire-testing and in integration_tests.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from weightwire.backend import SenderBackend
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.engines import Engine, Engines
from weightwire.errors import SourceFailed
from weightwire.messages import (
    EngineInfo,
    EngineKind,
    Manifest,
    ReceiverLimits,
    Rendezvous,
    TensorMeta,
    TransferPlan,
    TransferStats,
    Window,
)
from weightwire.options import Options
from weightwire.planes import SingleRank
from weightwire.session import Session
from weightwire.states import EngineState

TENSORS = tuple(TensorMeta(f"model.layers.{i}.mlp.down_proj.weight", "float32", (2, 2)) for i in range(3))
MANIFEST = Manifest(TENSORS, ((0, 1), (1, 2), (2, 3)))


class ListSource:
    """Gathers nothing but its own log."""

    def __init__(self, log: list[str], ranks: object = None) -> None:
        self.log = log
        self.ranks = ranks or SingleRank()
        self.fail_at: int | None = None
        self.shown = MANIFEST

    def manifest(self) -> Manifest:
        return self.shown

    def gather(self, group: int) -> Sequence[object]:
        self.log.append(f"gather {group}")
        if group == self.fail_at:
            raise RuntimeError(f"group {group} is gone")
        return [object()]


class LogPlane:
    """A data plane that gathers and counts."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.fail: dict[str, BaseException] = {}
        self.progress = None

    def _do(self, step: str) -> None:
        self.log.append(step)
        if step in self.fail:
            raise self.fail[step]

    def prepare(self, spec: object, deadline: Deadline) -> Rendezvous:
        self._do("prepare")
        return Rendezvous(address="127.0.0.1", port=1, world_size=2)

    def join(self, deadline: Deadline, watch: object) -> None:
        self._do("join")

    def send(
        self, plan: TransferPlan, window: Window, source: ListSource, deadline: Deadline, watch: object
    ) -> TransferStats:
        self._do("send")
        try:
            for group, (start, _) in enumerate(plan.manifest.groups):
                if window.start <= start < window.stop:
                    source.gather(group)
        except RuntimeError as error:
            raise SourceFailed("the source raised") from error
        return TransferStats(nbytes=plan.manifest.nbytes, collectives=1)

    def abort(self) -> None:
        self.log.append("abort plane")

    def close(self, deadline: Deadline) -> None:
        self.log.append("close plane")


class LogControl:
    """A control plane that keeps the order of its calls, and what the engine would hold."""

    def __init__(self, url: str, log: list[str]) -> None:
        self.url = url
        self.log = log
        self.fail: dict[str, BaseException] = {}
        self.version: str | None = "default"
        self.paused = False
        self.found = EngineState.WHOLE
        self.hang: threading.Event | None = None

    def _do(self, step: str) -> None:
        self.log.append(step)
        if step in self.fail:
            raise self.fail[step]

    def probe(self, deadline: Deadline) -> EngineInfo:
        self._do("probe")
        return EngineInfo(
            url=self.url,
            engine="log",
            version="1.0",
            dialect="1",
            control_plane="log",
            backend="log",
            kind=EngineKind.OURS,
            world_size=1,
            limits=ReceiverLimits(),
            state=self.found,
        )

    def _call(self, step: str) -> Call[None]:
        return Call(lambda: self._do(step), doing=step)

    def init_channel(self, request: object, deadline: Deadline) -> Call[None]:
        return self._call("init")

    def pause(self, mode: str, cache: str, deadline: Deadline) -> None:
        self._do("pause")
        self.paused = True

    def begin(self, plan: TransferPlan, deadline: Deadline) -> None:
        self._do("begin")

    def update(self, plan: TransferPlan, window: Window, deadline: Deadline) -> Call[None]:
        return self._call("update")

    def finish(self, plan: TransferPlan, deadline: Deadline) -> None:
        self._do("finish")
        self.version = plan.version

    def resume(self, deadline: Deadline) -> None:
        self._do("resume")
        self.paused = False

    def abort_update(self, plan: TransferPlan, deadline: Deadline) -> None:
        self._do("abort update")

    def mark(self, weight_version: str, deadline: Deadline) -> bool:
        self._do("mark torn" if weight_version.endswith(":torn") else "mark updating")
        self.version = weight_version
        return True

    def weight_version(self, deadline: Deadline) -> str | None:
        self._do("read version")
        return self.version

    def flush(self, deadline: Deadline) -> None:
        self._do("flush")
        self.found = EngineState.WHOLE

    def is_paused(self, deadline: Deadline) -> bool:
        self._do("is paused")
        return self.paused

    def close_channel(self, deadline: Deadline) -> None:
        self._do("close channel")

    def close(self) -> None:
        self.log.append("close control")


class World:
    """One session over one or more logged engines."""

    def __init__(self, urls: Sequence[str] = ("http://e0",), **options: object) -> None:
        self.log: list[str] = []
        self.options = Options(**{"timeout": 5.0, "verify": "off", **options})
        self.controls = [LogControl(url, self.log) for url in urls]
        self.control = self.controls[0]
        self.plane = LogPlane(self.log)
        self.source = ListSource(self.log)
        self.plugins: list[object] = []

    def session(self) -> Session:
        engines = Engines([Engine(control.url, control) for control in self.controls])
        backend = SenderBackend(engines, lambda infos: ("log", self.plane), self.options)
        return Session(backend, self.source, self.options, plugins=self.plugins)

    def open(self) -> Session:
        session = self.session()
        session.open()
        self.log.clear()
        return session


@pytest.fixture
def make_world():
    return World


@pytest.fixture
def world():
    return World()


@pytest.fixture
def manifest():
    return MANIFEST
