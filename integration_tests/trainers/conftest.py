"""Trainers in real processes, against the reference engine; ``nox -s trainers``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the helpers beside the tests

from launch import RANKS, torchrun

Said = dict[str, object]


@pytest.fixture(scope="session")
def crews(engine_pool, tiny_checkpoint, tmp_path_factory) -> Callable[..., list[Said]]:
    """What every rank of a trainer says of one set-up. All set-ups of one kind and size run in one crew, once."""
    from weightwire_testing.reference import EngineSettings  # noqa: PLC0415 - where there is one

    @cache
    def sail(ranks: int, setups: tuple[str, ...], engine: str) -> Path:
        out = tmp_path_factory.mktemp("crew")
        serving = engine_pool.lend(EngineSettings(checkpoint=str(tiny_checkpoint), version=engine))
        options = {"timeout": 60, "bucket_bytes": 100_000}
        words = ["--url", serving.url, "--checkpoint", str(tiny_checkpoint), "--out", str(out)]
        try:
            torchrun(ranks, RANKS / "push_twice.py", [*words, "--options", json.dumps(options), *setups])
        finally:
            engine_pool.give_back(serving)
        return out

    def ask(ranks: int, setups: tuple[str, ...], setup: str, *, engine: str = "0.32.0") -> list[Said]:
        out = sail(ranks, setups, engine)
        return [json.loads((out / f"{setup}.{rank}.json").read_text()) for rank in range(ranks)]

    return ask
