"""Trainers in real processes, against the reference engine and real servers; ``nox -s trainers``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the helpers beside the tests

from crews import OPTIONS, Errand, Said, reports, sail


@pytest.fixture(scope="session")
def crews(engine_pool, tiny_checkpoint, tmp_path_factory) -> Callable[..., list[Said]]:
    """What every rank of a trainer says of one set-up. All set-ups of one kind and size run in one crew, once."""
    from weightwire_testing.reference import EngineSettings  # noqa: PLC0415 - where there is one

    @cache
    def out(ranks: int, setups: tuple[str, ...], python: Path) -> Path:
        folder = tmp_path_factory.mktemp("crew")
        serving = engine_pool.lend(EngineSettings(checkpoint=str(tiny_checkpoint), version="0.32.0"))
        try:
            sail(Errand(serving.url, tiny_checkpoint, folder, OPTIONS), ranks, setups, python=python)
        finally:
            engine_pool.give_back(serving)
        return folder

    def ask(ranks: int, setups: tuple[str, ...], setup: str, *, python: Path = Path(sys.executable)) -> list[Said]:
        return reports(out(ranks, setups, python), ranks, setup)

    return ask
