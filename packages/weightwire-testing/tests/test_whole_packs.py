"""Two packs at once where that is safe: whole rounds into a receiver whose buffers race."""

from __future__ import annotations

import pytest
import weightwire
import weightwire.plan
from weightwire_testing.model import TinyLlama, fingerprint
from weightwire_testing.reference import Backend, EngineSettings
from weightwire_testing.stock_plane import StockShimPlane

MODEL = TinyLlama(seed=2)
TIMEOUT = 60.0


@pytest.fixture
def told(monkeypatch) -> list[tuple[int, int]]:
    """The size and the number of buffers of every channel that is opened."""
    seen: list[tuple[int, int]] = []
    prepare = StockShimPlane.prepare

    def noting(plane, spec, deadline):
        seen.append((spec.geometry.buffer_bytes, spec.geometry.num_buffers))
        return prepare(plane, spec, deadline)

    monkeypatch.setattr(StockShimPlane, "prepare", noting)
    return seen


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({"bucket_bytes": 33_000}, (33_000, 1)),
        ({"bucket_bytes": 800_000}, (800_000, 2)),
        ({"bucket_bytes": 800_000, "num_buckets": 1}, (800_000, 1)),
        ({}, (853_503, 2)),
    ],
)
def test_no_module_lies_in_two_packs_that_are_loaded_at_once(
    reference_engine, monkeypatch, told, options, chosen
) -> None:
    monkeypatch.setattr(weightwire.plan, "STOCK_BUCKET", 900_000)
    engine = reference_engine(EngineSettings(version="0.32.0", backend=Backend.NCCL))
    options = {"timeout": TIMEOUT, "data_plane": "stock-shim", **options}
    with weightwire.connect(engine.url, MODEL, options) as session:
        session.push(1)
    assert told == [chosen]
    assert engine.fingerprint() == fingerprint(MODEL.checkpoint_tensors())
