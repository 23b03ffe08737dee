"""The pytest plugin: fixtures for the reference engine, and what makes the conformance kit's classes run.

Imported at the start of every pytest run in an environment that has this distribution, so nothing heavy is imported
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from weightwire_testing.reference.launcher import ReferenceEngine
from weightwire_testing.reference.pool import EnginePool
from weightwire_testing.reference.settings import EngineSettings

MakeEngine = Callable[..., ReferenceEngine]
"""The fixture :func:`reference_engine`: called with an :class:`EngineSettings`, or without for the defaults."""


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a small, untied Llama with fixed weights (seed 1)."""
    from weightwire_testing.model import TinyLlama, save_checkpoint  # noqa: PLC0415 - torch

    return save_checkpoint(TinyLlama(seed=1), tmp_path_factory.mktemp("tiny") / "checkpoint")


@pytest.fixture(scope="session")
def engine_pool() -> Iterator[EnginePool]:
    """Reference engines that later tests use again."""
    pool = EnginePool()
    yield pool
    pool.close()


@pytest.fixture
def reference_engine(engine_pool: EnginePool, tiny_checkpoint: Path) -> Iterator[MakeEngine]:
    """Makes reference engines, each as fresh as from its start; given back when the test ends.

    ``reference_engine()``, or ``reference_engine(EngineSettings(version="0.28.0", workers=2))``. Without a checkpoint
    in the settings it serves ``tiny_checkpoint``.
    """
    lent: list[ReferenceEngine] = []

    def make(settings: EngineSettings | None = None) -> ReferenceEngine:
        wanted = settings or EngineSettings()
        if not wanted.checkpoint:
            wanted = msgspec.structs.replace(wanted, checkpoint=str(tiny_checkpoint))
        lent.append(engine_pool.lend(wanted))
        return lent[-1]

    yield make
    for engine in lent:
        engine_pool.give_back(engine)
