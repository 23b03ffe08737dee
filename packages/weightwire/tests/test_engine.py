"""One engine's rules: what it counts as after each step, and what is never done to it."""

from __future__ import annotations

import pytest
from weightwire.deadlines import Deadline
from weightwire.engine import Engine
from weightwire.errors import (
    DeadlineExceeded,
    EngineRefused,
    EngineUnreachable,
    GarbledReply,
    StateError,
    UpdateFailed,
)
from weightwire.messages import CachePolicy, PauseMode, RoundMode, TransferPlan
from weightwire.states import EngineState
from weightwire.tensors import PackGeometry

SOON = Deadline.after(600.0)  # of the whole suite, of which these tests are a part


@pytest.fixture(params=[True, False], ids=["keeps a version", "keeps none"])
def control(request, make_world):
    return make_world(keeps_version=request.param).control


@pytest.fixture
def versioned(make_world):
    return make_world(keeps_version=True).control


@pytest.fixture
def unversioned(make_world):
    return make_world(keeps_version=False).control


def probed(control) -> Engine:
    engine = Engine(control.url, control)
    engine.probe(SOON)
    control.log.clear()
    return engine


def a_plan(manifest, version="7", mode=RoundMode.DIRECT) -> TransferPlan:
    geometry = PackGeometry(packed=False, buffer_bytes=0, num_buffers=0)
    return TransferPlan(round_id="r1", version=version, manifest=manifest, windows=(), geometry=geometry, mode=mode)


def paused(engine: Engine) -> Engine:
    engine.pause(PauseMode.KEEP, CachePolicy.RESET, SOON)
    return engine


# A round that goes well.


def test_it_is_torn_from_the_beginning_of_an_update_until_it_is_committed(control, manifest):
    engine = paused(probed(control))
    engine.begin(a_plan(manifest), SOON)
    assert engine.state is EngineState.TORN
    engine.finish(a_plan(manifest), SOON)
    assert engine.state is EngineState.WHOLE
    engine.read_back("7", SOON)
    control.server.weights = "7"
    engine.resume(SOON)
    assert (engine.held, control.paused, control.server.crimes) == (False, False, [])


def test_it_is_marked_before_the_update_is_opened_so_that_a_dead_trainer_leaves_its_word(versioned, manifest):
    engine = paused(probed(versioned))
    versioned.log.clear()
    engine.begin(a_plan(manifest), SOON)
    assert versioned.log == ["mark updating", "begin"]
    assert versioned.version == "weightwire:updating:r1"


def test_in_a_staged_round_it_stays_whole_and_unmarked_until_it_commits(versioned, manifest):
    engine = probed(versioned)
    staged = a_plan(manifest, mode=RoundMode.STAGED)
    versioned.server.paused = True
    engine.begin(staged, SOON)
    assert (engine.state, versioned.version, versioned.log) == (EngineState.WHOLE, "default", ["begin"])


def test_what_it_says_it_holds_is_told_and_another_version_tears_it(versioned, manifest):
    engine = paused(probed(versioned))
    engine.begin(a_plan(manifest), SOON)
    engine.finish(a_plan(manifest), SOON)
    assert engine.read_back("7", SOON) == "http://e0 says it holds version 7"
    versioned.server.version = "8"
    with pytest.raises(UpdateFailed, match="'8', not '7'"):
        engine.read_back("7", SOON)
    assert engine.state is EngineState.TORN


def test_where_no_version_is_kept_none_is_read_back(unversioned):
    assert probed(unversioned).read_back("7", SOON) == ""


# What is refused.


def test_two_updates_are_never_open_at_once(control, manifest):
    engine = paused(probed(control))
    engine.begin(a_plan(manifest), SOON)
    with pytest.raises(StateError, match="open already"):
        engine.begin(a_plan(manifest), SOON)


@pytest.mark.parametrize("state", [EngineState.TORN, EngineState.LOST])
def test_what_is_torn_or_lost_takes_no_update_before_it_was_flushed(control, manifest, state):
    engine = paused(probed(control))
    engine.state = state
    with pytest.raises(StateError, match=f"is {state}"):
        engine.begin(a_plan(manifest), SOON)
    assert "begin" not in control.log


@pytest.mark.parametrize("state", [EngineState.TORN, EngineState.LOST])
def test_what_is_torn_or_lost_is_never_resumed(control, state):
    engine = paused(probed(control))
    engine.state = state
    engine.resume(SOON)
    assert "resume" not in control.log


def test_what_joined_late_is_not_resumed_before_it_was_pushed_to(control, manifest):
    engine = paused(probed(control))
    engine.behind = True
    engine.resume(SOON)
    assert control.paused
    engine.begin(a_plan(manifest), SOON)
    engine.finish(a_plan(manifest), SOON)
    control.server.weights = "7"
    engine.resume(SOON)
    assert not control.paused


def test_what_somebody_else_paused_is_not_resumed(control):
    engine = probed(control)
    control.server.paused = True
    engine.resume(SOON)
    assert control.paused


# Resuming.


def test_a_resume_that_fails_once_is_tried_again(control):
    engine = paused(probed(control))
    control.fail_late["resume"] = EngineUnreachable("cut")
    with pytest.raises(EngineUnreachable):
        engine.resume(SOON)
    assert control.log.count("resume") == 2
    assert engine.held
    control.fail_late.clear()
    engine.resume(SOON)
    assert not engine.held


def test_a_resume_is_not_tried_again_when_the_time_is_over(control):
    engine = paused(probed(control))
    control.fail["resume"] = EngineRefused("no")
    with pytest.raises(DeadlineExceeded):
        engine.resume(Deadline.after(0.0))
    assert control.log.count("resume") == 1


# Mending.


def test_mending_pauses_and_flushes_what_is_torn_and_leaves_it_torn(control):
    engine = probed(control)
    engine.state = EngineState.TORN
    engine.mend(SOON)
    assert control.log == ["pause", "flush"]
    assert (engine.state, control.paused) == (EngineState.TORN, True)


def test_mending_leaves_a_whole_engine_alone(control):
    engine = probed(control)
    engine.mend(SOON)
    assert control.log == []


def test_what_refuses_to_be_flushed_is_lost(control):
    engine = probed(control)
    engine.state = EngineState.TORN
    control.fail["flush"] = EngineRefused("no")
    with pytest.raises(EngineRefused):
        engine.mend(SOON)
    assert engine.state is EngineState.LOST
    with pytest.raises(StateError, match="beyond recovery"):
        engine.mend(SOON)


def test_what_can_not_be_reached_to_be_flushed_is_torn_still(control):
    engine = probed(control)
    engine.state = EngineState.TORN
    control.fail["flush"] = EngineUnreachable("cut")
    with pytest.raises(EngineUnreachable):
        engine.mend(SOON)
    assert engine.state is EngineState.TORN


# What a failed round leaves.


def test_settling_what_was_never_reached_changes_nothing(control, manifest):
    engine = probed(control)
    engine.settle(a_plan(manifest), SOON)
    assert (engine.state, control.log) == (EngineState.WHOLE, [])


def test_settling_an_open_update_leaves_it_torn_paused_and_marked(versioned, manifest):
    engine = paused(probed(versioned))
    engine.begin(a_plan(manifest), SOON)
    engine.settle(a_plan(manifest), SOON)
    assert (engine.state, versioned.paused) == (EngineState.TORN, True)
    assert versioned.version == "weightwire:r1:torn"


def test_what_somebody_resumed_in_mid_update_is_paused_again(control, manifest):
    engine = paused(probed(control))
    engine.begin(a_plan(manifest), SOON)
    control.server.paused = False
    engine.settle(a_plan(manifest), SOON)
    assert (engine.state, control.paused) == (EngineState.TORN, True)


def test_what_does_not_say_whether_it_is_paused_is_lost(control, manifest):
    engine = paused(probed(control))
    engine.begin(a_plan(manifest), SOON)
    control.kill_at = "is paused"
    engine.settle(a_plan(manifest), SOON)
    assert engine.state is EngineState.LOST


def test_what_was_only_paused_and_does_not_answer_is_lost_too(control, manifest):
    engine = paused(probed(control))
    control.kill_at = "is paused"
    engine.settle(a_plan(manifest), SOON)
    assert engine.state is EngineState.LOST


def test_a_mark_that_failed_is_taken_back(versioned, manifest):
    engine = paused(probed(versioned))
    versioned.fail_late["mark updating"] = EngineUnreachable("cut")
    with pytest.raises(EngineUnreachable):
        engine.begin(a_plan(manifest), SOON)
    engine.settle(a_plan(manifest), SOON)
    assert (engine.state, versioned.version) == (EngineState.WHOLE, "default")


def test_a_staged_round_that_failed_is_aborted_and_the_engine_is_whole(versioned, manifest):
    engine = probed(versioned)
    staged = a_plan(manifest, mode=RoundMode.STAGED)
    versioned.fail_late["begin"] = EngineUnreachable("cut")
    versioned.server.paused = True
    with pytest.raises(EngineUnreachable):
        engine.begin(staged, SOON)
    engine.settle(staged, SOON)
    assert engine.state is EngineState.WHOLE
    assert versioned.log[-1] == "abort update"


@pytest.mark.parametrize(
    ("server", "answer", "left"),
    [
        ("versioned", EngineUnreachable("cut"), EngineState.WHOLE),
        ("versioned", GarbledReply("garbled"), EngineState.WHOLE),
        ("unversioned", EngineUnreachable("cut"), EngineState.TORN),
        ("versioned", EngineRefused("no"), EngineState.TORN),
    ],
    ids=["cut", "garbled", "no version tells", "refused"],
)
def test_a_commit_without_an_answer_is_done_if_its_version_is_there_and_one_that_is_refused_is_not(
    server, answer, left, manifest, request
):
    control = request.getfixturevalue(server)
    engine = paused(probed(control))
    engine.begin(a_plan(manifest), SOON)
    control.fail_late["finish"] = answer
    with pytest.raises(type(answer)):
        engine.finish(a_plan(manifest), SOON)
    engine.settle(a_plan(manifest), SOON)
    assert engine.state is left


@pytest.mark.parametrize(("before", "left"), [("7", EngineState.TORN), ("6", EngineState.WHOLE)])
def test_a_staged_commit_without_an_answer_is_not_taken_for_done_by_a_version_that_was_there_before(
    before, left, versioned, manifest
):
    versioned.server.version = before
    engine = paused(probed(versioned))
    staged = a_plan(manifest, mode=RoundMode.STAGED)
    engine.begin(staged, SOON)
    versioned.fail_late["finish"] = EngineUnreachable("cut")
    with pytest.raises(EngineUnreachable):
        engine.finish(staged, SOON)
    engine.settle(staged, SOON)
    assert (staged.version, engine.state) == ("7", left)


# Between rounds.


def test_it_is_as_left_while_its_version_is_the_one_it_was_given(versioned, manifest):
    engine = paused(probed(versioned))
    engine.begin(a_plan(manifest), SOON)
    engine.finish(a_plan(manifest), SOON)
    assert engine.as_left(SOON)
    versioned.server.start()
    assert not engine.as_left(SOON)


def test_where_no_version_tells_one_that_another_paused_counts_as_torn(unversioned):
    engine = probed(unversioned)
    assert engine.as_left(SOON)
    unversioned.server.paused = True
    assert engine.as_left(SOON)
    assert engine.state is EngineState.TORN


def test_where_no_version_tells_one_that_lost_its_pause_was_restarted(unversioned):
    engine = paused(probed(unversioned))
    unversioned.server.start()
    assert not engine.as_left(SOON)


def test_what_does_not_answer_is_not_as_left(control):
    engine = probed(control)
    control.server.alive = False
    assert not engine.as_left(SOON)


def test_what_was_lost_and_answers_again_is_torn_until_it_was_pushed_to(control):
    engine = probed(control)
    engine.state = EngineState.LOST
    engine.probe(SOON)
    assert engine.state is EngineState.TORN
    engine.probe(SOON)
    assert engine.state is EngineState.TORN
