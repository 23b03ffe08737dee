"""Planes and sources without a network or tensors, for what the core itself decides.

They keep a log of every call, in order, and fail where a test tells them to. The engine behind a control plane is as
careless as a real one: it takes a resume in the middle of an update, and writes that down as a crime. What all this
stands for runs for real in the suites of weightwire-testing and in integration_tests.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence

import pytest
from weightwire.backend import SenderBackend
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.engine import Engine
from weightwire.engines import Engines
from weightwire.errors import EngineRefused, EngineUnreachable, SourceFailed
from weightwire.messages import EngineInfo, EngineKind, ReceiverLimits, Rendezvous, TransferPlan, TransferStats, Window
from weightwire.options import Options
from weightwire.planes import SingleRank
from weightwire.session import Session
from weightwire.states import EngineState
from weightwire.tensors import Manifest, TensorMeta

TENSORS = tuple(TensorMeta(f"model.layers.{i}.mlp.down_proj.weight", "float32", (2, 2)) for i in range(3))
MANIFEST = Manifest(TENSORS, ((0, 1), (1, 2), (2, 3)))
PATIENCE = 5.0  # seconds that a fake call waits for its bytes


class ListSource:
    """Gathers nothing but its own log."""

    def __init__(self, log: list[str], ranks: object = None) -> None:
        self.log = log
        self.ranks = ranks or SingleRank()
        self.fail_at: int | None = None
        self.fail_with: BaseException = RuntimeError("it is gone")
        self.shown = MANIFEST

    def manifest(self) -> Manifest:
        return self.shown

    def gather(self, group: int) -> Sequence[object]:
        self.log.append(f"gather {group}")
        if group == self.fail_at:
            raise self.fail_with
        return [object()]


class Store:
    """A store between threads that stand for ranks; it refuses to write a key twice."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()

    def rank(self, rank: int, size: int) -> Rank:
        return Rank(self, rank, size)


class Rank:
    """One of them."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self.store, self.rank, self.size = store, rank, size

    def publish(self, key: str, value: bytes) -> None:
        with self.store.changed:
            assert key not in self.store.values, f"{key} was written twice"
            self.store.values[key] = value
            self.store.changed.notify_all()

    def read(self, key: str, deadline: Deadline) -> bytes:
        with self.store.changed:
            if not self.store.changed.wait_for(lambda: key in self.store.values, deadline.remaining()):
                raise deadline.exceeded(f"waiting for {key}")
            return self.store.values[key]


class Wire:
    """What becomes of the bytes of one channel: ``weights``, ``filler``, or ``broken``."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._fate: dict[tuple[str, int], str] = {}
        self.alive = True

    def deliver(self, plan: TransferPlan, window: Window, fate: str) -> None:
        with self._news:
            self._fate[plan.round_id, window.index] = fate
            self._news.notify_all()

    def fate(self, plan: TransferPlan, window: Window) -> str:
        key = plan.round_id, window.index
        with self._news:
            self._news.wait_for(lambda: key in self._fate or not self.alive, PATIENCE)
            return self._fate.get(key, "broken")

    def cut(self) -> None:
        with self._news:
            self.alive = False
            self._news.notify_all()


class LogPlane:
    """A data plane that gathers and counts."""

    def __init__(self, log: list[str], controls: Sequence[LogControl] = ()) -> None:
        self.log = log
        self.controls = controls
        self.fail: dict[str, BaseException] = {}
        self.progress = None
        self.wire = Wire()

    def _do(self, step: str) -> None:
        self.log.append(step)
        if step in self.fail:
            raise copy.copy(self.fail[step])

    def prepare(self, spec: object, deadline: Deadline) -> Rendezvous:
        self._do("prepare")
        self.wire = Wire()
        for control in self.controls:
            control.server.offered = self.wire
        return Rendezvous(address="127.0.0.1", port=1, world_size=2)

    def join(self, deadline: Deadline, watch: object) -> None:
        self._do("join")

    def send(
        self,
        plan: TransferPlan,
        window: Window,
        source: ListSource,
        deadline: Deadline,
        watch: Callable[[], BaseException | None],
    ) -> TransferStats:
        self._do("send")
        failure: Exception | None = None
        for group, (start, _) in enumerate(plan.manifest.groups):
            if window.start <= start < window.stop:
                try:
                    source.gather(group)
                except Exception as error:  # noqa: BLE001 - as a plane must
                    failure = failure or error
        early = watch()
        if early is not None:
            raise early
        self.wire.deliver(plan, window, "weights" if failure is None else "filler")
        if failure is not None:
            raise SourceFailed(f"the source raised: {failure}") from failure
        return TransferStats(nbytes=plan.manifest.nbytes, collectives=1)

    def abort(self) -> None:
        self.log.append("abort plane")
        self.wire.cut()

    def close(self, deadline: Deadline) -> None:
        self.log.append("close plane")
        self.wire.cut()


class TrainerEnded(BaseException):
    """The end of the trainer's process, as far as a test can have one inside its own."""


class Server:
    """An engine as vLLM 0.23 and later keep it. It does what it is told, and minds nothing."""

    def __init__(self, *, keeps_version: bool = True) -> None:
        self.keeps_version = keeps_version
        self.crimes: list[str] = []
        self.alive = True
        self.offered: Wire | None = None
        self.start()

    def start(self) -> None:
        """Begin anew, as from its checkpoint."""
        self.alive = True
        self.version = "default"
        self.weights = "initial"
        self.arriving = ""
        self.paused = False
        self.open = False
        self.stale = False
        self.channel: Wire | None = None

    @property
    def mixed(self) -> bool:
        """Whether a forward pass would give nonsense, or end the process."""
        return self.open or self.weights == "mix"

    def call(self, step: str) -> None:
        if not self.alive:
            raise EngineUnreachable("connection refused")
        if step == "resume" and self.mixed:
            self.crimes.append("resumed while it holds a mix")
        if step == "begin" and not self.paused:
            self.crimes.append("opened while it serves")

    def begin(self) -> None:
        if self.open:
            raise EngineRefused("no", server_text="a weight update is already active")
        self.open = True
        self.arriving = ""

    def update(self, plan: TransferPlan, window: Window) -> None:
        if not self.open:
            raise EngineRefused("no", server_text="no update is open")
        fate = self.channel.fate(plan, window) if self.channel is not None else "broken"
        self.weights = "mix"
        if fate == "broken":
            self.open, self.stale = False, True
            raise EngineRefused("no", server_text="connection closed by peer")
        last = window.index == len(plan.windows) - 1
        self.arriving = plan.version if fate == "weights" and last and not self.stale else self.arriving

    def finish(self, plan: TransferPlan) -> None:
        if not self.open:
            raise EngineRefused("no", server_text="finish without a matching start")
        self.open = False
        self.weights = self.arriving or "mix"
        if self.keeps_version:
            self.version = plan.version

    def flush(self) -> None:
        if not self.paused:
            self.crimes.append("flushed while it serves")
        self.open, self.stale = False, False


class LogControl:
    """A control plane that keeps the order of its calls.

    ``fail`` strikes before the engine acts, ``fail_late`` after it, and at ``kill_at`` its process ends. At ``end_at``
    it is the trainer's that ends: nothing it does from then on has an effect.
    """

    def __init__(self, url: str, log: list[str], *, keeps_version: bool = True) -> None:
        self.url = url
        self.log = log
        self.server = Server(keeps_version=keeps_version)
        self.fail: dict[str, BaseException] = {}
        self.fail_late: dict[str, BaseException] = {}
        self.kill_at = ""
        self.end_at = ""
        self.ended = False
        self.found: EngineState | None = None

    @property
    def version(self) -> str:
        return self.server.version

    @property
    def paused(self) -> bool:
        return self.server.paused

    def _do(self, step: str, act: Callable[[], object] = lambda: None) -> None:
        self.log.append(step)
        self.ended = self.ended or step == self.end_at
        if self.ended:
            raise TrainerEnded
        if step == self.kill_at:
            self.server.alive = False
        if step in self.fail:
            raise copy.copy(self.fail[step])
        self.server.call(step)
        act()
        if step in self.fail_late:
            raise copy.copy(self.fail_late[step])

    def _set(self, **values: object) -> Callable[[], None]:
        def act() -> None:
            for name, value in values.items():
                setattr(self.server, name, value)

        return act

    def probe(self, deadline: Deadline) -> EngineInfo:
        self._do("probe")
        server = self.server
        torn = server.version.startswith("weightwire:") if server.keeps_version else server.paused
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
            paused=server.paused,
            state=self.found or (EngineState.TORN if torn else EngineState.WHOLE),
            weight_version=server.version if server.keeps_version else None,
        )

    def init_channel(self, request: object, deadline: Deadline) -> Call[None]:
        return Call(lambda: self._do("init", self._set(channel=self.server.offered)), doing="init")

    def pause(self, mode: str, cache: str, deadline: Deadline) -> None:
        self._do("pause", self._set(paused=True))

    def begin(self, plan: TransferPlan, deadline: Deadline) -> None:
        self._do("begin", self.server.begin)

    def update(self, plan: TransferPlan, window: Window, deadline: Deadline) -> Call[None]:
        return Call(lambda: self._do("update", lambda: self.server.update(plan, window)), doing="update")

    def finish(self, plan: TransferPlan, deadline: Deadline) -> None:
        self.found = None
        self._do("finish", lambda: self.server.finish(plan))

    def resume(self, deadline: Deadline) -> None:
        self._do("resume", self._set(paused=False))

    def abort_update(self, plan: TransferPlan, deadline: Deadline) -> None:
        self._do("abort update")

    def mark(self, weight_version: str, deadline: Deadline) -> bool:
        if not self.server.keeps_version:
            return False
        ours = weight_version.startswith("weightwire:")
        kind = {"torn": "torn", "recovered": "recovered"}.get(weight_version.rpartition(":")[2], "updating")
        step = f"mark {kind}" if ours else "mark back"
        self._do(step, self._set(version=weight_version))
        return True

    def weight_version(self, deadline: Deadline) -> str | None:
        if not self.server.keeps_version:
            return None
        self._do("read version")
        return self.server.version

    def flush(self, deadline: Deadline) -> None:
        self._do("flush", self.server.flush)

    def is_paused(self, deadline: Deadline) -> bool:
        self._do("is paused")
        return self.server.paused

    def close_channel(self, deadline: Deadline) -> None:
        self._do("close channel", self._set(channel=None))

    def close(self) -> None:
        self.log.append("close control")


class World:
    """One session over one or more logged engines; another one, if the first is forgotten."""

    def __init__(self, urls: Sequence[str] = ("http://e0",), *, keeps_version: bool = True, **options: object) -> None:
        self.log: list[str] = []
        self.options = Options(**{"timeout": 5.0, **options})
        self.controls = [LogControl(url, self.log, keeps_version=keeps_version) for url in urls]
        self.control = self.controls[0]
        self.plane = LogPlane(self.log, self.controls)
        self.source = ListSource(self.log)
        self.plugins: list[object] = []
        self.late: Callable[[LogControl], object] = lambda control: None

    @property
    def server(self) -> Server:
        return self.control.server

    def session(self) -> Session:
        engines = Engines([Engine(control.url, control) for control in self.controls], self.make_engine)
        backend = SenderBackend(engines, lambda infos: ("log", self.plane), self.options)
        return Session(backend, self.source, self.options, plugins=self.plugins)

    def make_engine(self, url: str, deadline: Deadline) -> Engine:
        """One that comes later; :attr:`late` says how it is."""
        control = LogControl(url, self.log)
        self.late(control)
        self.controls.append(control)
        return Engine(url, control)

    def open(self) -> Session:
        session = self.session()
        session.open()
        self.log.clear()
        return session

    def mend_everything(self) -> None:
        """Take every fault away."""
        for control in self.controls:
            control.fail.clear()
            control.fail_late.clear()
            control.kill_at = control.end_at = ""
            control.ended = False
        self.plane.fail.clear()
        self.source.fail_at = None


@pytest.fixture
def make_world():
    return World


@pytest.fixture
def world():
    return World()


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def manifest():
    return MANIFEST
