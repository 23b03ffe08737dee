"""TRL's trainers on one and two ranks push into the reference engine, in DDP and sharded, and fail as they should."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import weightwire
from launch import RANKS, SECONDS, by_themselves, free_port, one_by_one, torchrun
from weightwire.states import EngineState
from weightwire_testing.reference import ReferenceEngine

SMALL = 1e-3
"""A log-probability that differs by less is of the same weights."""

HELPERS = str(Path(__file__).parents[2] / "plugins" / "weightwire-trl" / "tests")
PATHS = {"PYTHONPATH": os.pathsep.join(filter(None, (HELPERS, os.environ.get("PYTHONPATH"))))}
SHARDED = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "LlamaDecoderLayer",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
}
OPTIONS = {"timeout": 30, "bucket_bytes": 100_000}
IN_DDP = ("bound", "unbound", "lora", "frozen")
IN_FSDP2 = ("bound", "unbound", "lora", "frozen")

Said = dict[str, object]


class Crew:
    """Ranks of one trainer, and the engine that they push into."""

    def __init__(self, engine: ReferenceEngine, checkpoint: Path, out: Path) -> None:
        self.engine = engine
        self._words = [f"--url={engine.url}", f"--checkpoint={checkpoint}", f"--out={out}"]
        self._out = out

    def sail(self, script: str, ranks: int, words: tuple[str, ...], **variables: str) -> None:
        options = f"--options={json.dumps(OPTIONS)}"
        torchrun(ranks, RANKS / script, [*self._words, options, *words], **PATHS, **variables)

    def reports(self, ranks: int, setup: str) -> list[Said]:
        return [json.loads((self._out / f"{setup}.{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture
def crew(reference_engine: Callable[..., ReferenceEngine], tiny_checkpoint: Path, tmp_path: Path) -> Crew:
    return Crew(reference_engine(), tiny_checkpoint, tmp_path)


def assert_served(said: Said, *, pushes: int) -> None:
    assert said["off"] < SMALL < said["moved"], said
    assert said["steps"] == 3
    assert said["pushes"] == pushes


@pytest.mark.timeout(400)
def test_in_ddp_on_two_ranks_what_is_served_is_what_was_trained(crew: Crew) -> None:
    crew.sail("trl_async.py", 2, IN_DDP)
    for setup in IN_DDP:
        sender, other = crew.reports(2, setup)
        assert_served(sender, pushes=0 if setup == "unbound" else 4)
        assert sender["frozen_kept"], setup
        assert other["frozen_kept"], setup


@pytest.mark.timeout(400)
def test_sharded_with_fsdp2_on_two_ranks_what_is_served_is_what_was_trained(crew: Crew) -> None:
    crew.sail("trl_async.py", 2, IN_FSDP2, **SHARDED)
    for setup in IN_FSDP2:
        sender, other = crew.reports(2, setup)
        assert sender["sharded"], setup
        assert other["sharded"], setup
        assert_served(sender, pushes=0 if setup == "unbound" else 4)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_source_that_raises_on_one_rank_ends_training_on_both_and_the_next_job_mends_the_engine(
    victim: int, crew: Crew
) -> None:
    with pytest.raises(AssertionError):
        crew.sail("trl_async.py", 2, (f"--victim={victim}", "bound"), **SHARDED)
    for said in crew.reports(2, "bound"):
        assert said["error"] == "UpdateFailed"
        assert "told to" in str(said["text"])
        assert said["seconds"] < OPTIONS["timeout"]
    found = weightwire.inspect(crew.engine.url)
    assert (found.state, found.paused) == (EngineState.TORN, True)
    crew.sail("trl_async.py", 2, ("bound",), **SHARDED)
    assert_served(crew.reports(2, "bound")[0], pushes=4)
    found = weightwire.inspect(crew.engine.url)
    assert (found.state, found.paused) == (EngineState.WHOLE, False)


@pytest.mark.timeout(400)
def test_an_unbound_push_that_is_refused_ends_the_job_on_both_ranks_and_leaves_the_engine_torn_and_paused(
    crew: Crew,
) -> None:
    crew.engine.set_faults("receive:refuse=boom@3")
    with pytest.raises(AssertionError):
        crew.sail("trl_async.py", 2, ("unbound",), **SHARDED)
    (said,) = crew.reports(1, "unbound")
    assert (said["error"], said["seconds"] < OPTIONS["timeout"]) == ("UpdateFailed", True)
    assert "boom" in str(said["text"])
    found = weightwire.inspect(crew.engine.url)
    assert (found.state, found.paused) == (EngineState.TORN, True)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("launched", [True, False])
def test_a_wrong_address_ends_training_on_both_ranks_with_words_of_ours(
    launched: bool, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    words = [f"--url={nowhere}", f"--checkpoint={tiny_checkpoint}", f"--out={tmp_path}"]
    words += [f"--options={json.dumps(OPTIONS)}", "bound"]
    start = one_by_one if launched else partial(by_themselves, port=free_port())
    with start(2, RANKS / "trl_async.py", words, **PATHS) as ranks:
        logs = [rank.communicate(timeout=SECONDS)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1], logs
    for rank, error in enumerate(("EngineUnreachable", "UpdateFailed")):
        said = json.loads((tmp_path / f"bound.{rank}.json").read_text())
        assert (said["error"], nowhere in said["text"]) == (error, True), said
        assert said["seconds"] < OPTIONS["timeout"]


NOT_ASKED = {"ACCELERATE_USE_CPU": "false"}
"""Accelerate 1.15 runs DDP instead of DeepSpeed where the variable is set; the trainer's own ``use_cpu`` will do."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("how", "kinds", "variables"),
    [("ddp", ("sft", "grpo"), {}), ("fsdp2", ("sft",), SHARDED), ("zero3", ("sft",), NOT_ASKED)],
)
def test_the_callback_pushes_from_two_ranks_whatever_they_shard_with(how, kinds, variables, crew: Crew) -> None:
    crew.sail("trl_callback.py", 2, (how, *kinds), **variables)
    for kind in kinds:
        sender, other = crew.reports(2, kind)
        assert_served(sender, pushes=4)
        assert (sender["version"], other["version"]) == ("3", "3")
