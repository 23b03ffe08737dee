"""Something happens to one rank of three: who raises what, and when, and what the engine is left with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import weightwire
from launch import RANKS, SECONDS, one_by_one, torchrun
from weightwire.states import EngineState
from weightwire_testing.reference import ReferenceEngine

TIMEOUT = 15.0
"""Of the session, in seconds."""
OPTIONS = {"timeout": TIMEOUT, "bucket_bytes": 100_000}
GROUP_TIMEOUT = 30.0
"""Of the trainer's own process group, in seconds."""
SLACK = 3.0
"""What a busy machine may add."""
SENDER = 0


class Said(NamedTuple):
    """What a rank's push raised, and after how many seconds."""

    error: str
    text: str
    seconds: float


class Fault(NamedTuple):
    """What happens to whom.

    Attributes:
        fault: see ranks/fail.py.
        victim: the rank.
        group: the group that is gathered then; -1 for the last.
    """

    fault: str
    victim: int
    group: int = 1


@pytest.fixture
def strike(
    reference_engine: Callable[..., ReferenceEngine], tiny_checkpoint: Path, tmp_path: Path
) -> Callable[[Fault], tuple[dict[int, Said], ReferenceEngine]]:
    """Let something happen; returns what the ranks that live said, and the engine."""

    def run(fault: Fault, setup: str = "fsdp2") -> tuple[dict[int, Said], ReferenceEngine]:
        engine = reference_engine()
        words = [f"--url={engine.url}", f"--checkpoint={tiny_checkpoint}", f"--out={tmp_path}", f"--setup={setup}"]
        words += [f"--options={json.dumps(OPTIONS)}", f"--group-timeout={GROUP_TIMEOUT}"]
        words += [f"--fault={fault.fault}", f"--victim={fault.victim}", f"--group={fault.group}"]
        gone = [] if fault.fault == "raises" else [fault.victim]
        with one_by_one(3, RANKS / "fail.py", words) as ranks:
            living = [rank for rank in range(3) if rank not in gone]
            logs = {rank: ranks[rank].communicate(timeout=SECONDS)[0] for rank in living}
        reports = {rank: tmp_path / f"bad.{rank}.json" for rank in living}
        assert all(report.is_file() for report in reports.values()), logs
        return {rank: Said(**json.loads(report.read_text())) for rank, report in reports.items()}, engine

    return run


def push_again(engine: ReferenceEngine, checkpoint: Path, out: Path) -> None:
    """The job is started anew, with two ranks, and pushes."""
    words = ["--url", engine.url, "--checkpoint", str(checkpoint), "--out", str(out), "fsdp2"]
    torchrun(2, RANKS / "push_twice.py", words)


def assert_all_failed(said: dict[int, Said], *, within: float) -> None:
    assert {one.error for one in said.values()} == {"UpdateFailed"}, said
    assert all(one.seconds < within + SLACK for one in said.values()), said


@pytest.mark.timeout(400)
@pytest.mark.parametrize("victim", [SENDER, 2])
def test_a_source_that_raises_fails_the_push_on_every_rank(victim: int, strike, tiny_checkpoint, tmp_path) -> None:
    said, engine = strike(Fault("raises", victim))
    assert_all_failed(said, within=TIMEOUT)
    assert all("told to" in one.text for one in said.values()), said
    found = weightwire.inspect(engine.url)
    assert (found.state, found.paused) == (EngineState.TORN, True)
    push_again(engine, tiny_checkpoint, tmp_path)
    found = weightwire.inspect(engine.url)
    assert (found.state, found.paused) == (EngineState.WHOLE, False)


@pytest.mark.timeout(400)
def test_a_rank_that_dies_before_the_push_is_named_and_the_engine_serves_on(strike) -> None:
    said, engine = strike(Fault("dies before", 2))
    assert_all_failed(said, within=TIMEOUT)
    assert "rank 2" in said[SENDER].text
    found = weightwire.inspect(engine.url)
    assert (found.state, found.paused, found.weight_version) == (EngineState.WHOLE, False, "good")


@pytest.mark.timeout(400)
def test_a_rank_that_dies_after_its_last_gather_is_named(strike) -> None:
    said, engine = strike(Fault("dies after", 2, group=-1))
    assert_all_failed(said, within=TIMEOUT)
    assert "rank 2" in said[SENDER].text
    assert weightwire.inspect(engine.url).paused


@pytest.mark.timeout(400)
@pytest.mark.parametrize("setup", ["fsdp2", "zero3"])
def test_a_rank_that_dies_inside_a_gather_fails_the_others_there(setup: str, strike, tiny_checkpoint, tmp_path) -> None:
    said, engine = strike(Fault("dies inside", 2), setup)
    assert_all_failed(said, within=TIMEOUT)
    assert weightwire.inspect(engine.url).paused
    push_again(engine, tiny_checkpoint, tmp_path)
    assert weightwire.inspect(engine.url).state is EngineState.WHOLE


@pytest.mark.timeout(400)
def test_a_rank_that_freezes_inside_a_gather_holds_the_others_until_their_group_times_out(strike) -> None:
    said, engine = strike(Fault("freezes inside", 2))
    assert_all_failed(said, within=GROUP_TIMEOUT)
    assert weightwire.inspect(engine.url).paused
