"""A model that is changed between two pushes, on all ranks or on one: every rank decides alike, and nobody hangs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import weightwire
from crews import OPTIONS, TOLERANCE, Said
from launch import RANKS, torchrun
from weightwire.states import EngineState
from weightwire_testing.reference import ReferenceEngine

SETUPS = ("fsdp2_adapters", "fsdp2", "zero3", "ddp")
SERVED = {"fsdp2_adapters": ("other", "together"), "fsdp2": ("head",), "zero3": (), "ddp": ("head",)}
REFUSED = {
    "fsdp2_adapters": {"apart": ("UpdateFailed", "UpdateFailed", "rank 1 is about to gather other tensors")},
    "fsdp2": {"shorter": ("ManifestError", "ManifestError", "9 gone: model.layers.")},
    "zero3": {"shorter": ("ManifestError", "ManifestError", "9 gone: model.layers.")},
    "ddp": {"shorter there": ("UpdateFailed", "ManifestError", "9 gone: model.layers.")},
}
"""By change: what the sender raises, what the other rank does, and what both say."""


@pytest.fixture(scope="module")
def said(engine_pool, tiny_checkpoint: Path, tmp_path_factory) -> Callable[[str], list[dict[str, Said]]]:
    """What both ranks say of one set-up; all of them run in one crew, into an engine each."""
    from weightwire_testing.reference import EngineSettings  # noqa: PLC0415 - where there is one

    out = tmp_path_factory.mktemp("changes")
    serving: ReferenceEngine = engine_pool.lend(EngineSettings(checkpoint=str(tiny_checkpoint)))
    words = [f"--url={serving.url}", f"--checkpoint={tiny_checkpoint}", f"--out={out}"]
    torchrun(2, RANKS / "change.py", [*words, f"--options={json.dumps(OPTIONS)}", *SETUPS])
    found = weightwire.inspect(serving.url)
    assert (found.state, found.paused, found.weight_version) == (EngineState.WHOLE, False, "head")
    engine_pool.give_back(serving)
    return lambda setup: [json.loads((out / f"{setup}.{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("setup", SETUPS)
def test_what_the_model_is_made_of_now_is_served(setup: str, said) -> None:
    for rank in said(setup):
        for change in SERVED[setup]:
            assert rank[change]["error"] == "", rank
            assert rank[change]["off"] < TOLERANCE, rank


@pytest.mark.timeout(400)
@pytest.mark.parametrize("setup", SETUPS)
def test_what_can_not_be_sent_is_refused_on_every_rank_at_once(setup: str, said) -> None:
    sender, other = said(setup)
    for change, (first, second, text) in REFUSED[setup].items():
        assert (sender[change]["error"], other[change]["error"]) == (first, second), (sender, other)
        assert all(text in rank[change]["text"] for rank in (sender, other)), (sender, other)
        assert all(rank[change]["seconds"] < OPTIONS["timeout"] / 6 for rank in (sender, other)), (sender, other)
