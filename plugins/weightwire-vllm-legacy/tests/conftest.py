"""Sessions with a reference engine that behaves as a release of the two-call form."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import weightwire
from weightwire.deadlines import Deadline
from weightwire.http import Http
from weightwire.messages import Manifest, PackGeometry, TensorMeta, TransferPlan, Window
from weightwire.options import Options
from weightwire.session import Session
from weightwire_testing.reference.launcher import ReferenceEngine
from weightwire_testing.reference.settings import EngineSettings
from weightwire_vllm_legacy.control import LegacyControl, create

Make = Callable[..., ReferenceEngine]


@pytest.fixture
def engine(reference_engine: Make) -> Make:
    """Makes an engine of a release: ``engine("0.17.1", workers=2)``; ours unless ``backend`` says otherwise."""

    def make(version: str, **settings: object) -> ReferenceEngine:
        return reference_engine(EngineSettings(version=version, **settings))

    return make


@pytest.fixture
def session() -> Iterator[Callable[..., Session]]:
    """Opens sessions, and closes them: ``session(engine, model, bucket_bytes=1000)``."""
    opened: list[Session] = []

    def connect(engine: ReferenceEngine, model: object, **options: object) -> Session:
        opened.append(weightwire.connect(engine.url, model, Options(timeout=30.0, **options)))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


@pytest.fixture
def control() -> Iterator[Callable[[ReferenceEngine], LegacyControl]]:
    """Makes the control plane of an engine."""
    made: list[LegacyControl] = []

    def make(engine: ReferenceEngine) -> LegacyControl:
        made.append(create(Http(engine.url, Options()), engine.settings.version, Options()))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def soon() -> Deadline:
    """Enough for the start of an engine and any call, and little enough to notice one that hangs."""
    return Deadline.after(60)


@pytest.fixture
def plan() -> TransferPlan:
    """A round of two windows."""
    tensors = (TensorMeta("a", "float32", (2,)), TensorMeta("b", "float32", (2,)))
    geometry = PackGeometry(packed=True, buffer_bytes=1024, num_buffers=1)
    return TransferPlan(
        round_id="r1",
        version="7",
        manifest=Manifest(tensors, ((0, 2),)),
        windows=(Window(0, 0, 1), Window(1, 1, 2)),
        geometry=geometry,
    )
