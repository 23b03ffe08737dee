"""A server that joins a session late serves nobody until it holds what the others hold."""

from __future__ import annotations

import msgspec
import pytest
from weightwire.errors import (
    CompatibilityError,
    EngineRefused,
    EngineUnreachable,
    SourceFailed,
    StateError,
    UpdateFailed,
    WeightwireError,
)
from weightwire.states import EngineState, SessionState

LATE = "http://late"


@pytest.fixture
def session(world):
    session = world.open()
    session.push(1)
    return session


def late(world):
    return world.controls[-1].server


def test_it_is_paused_at_once_and_the_others_are_left_alone(world, session):
    session.add(LATE)
    assert late(world).paused
    assert late(world).weights == "initial"
    assert not world.server.paused
    assert session.engine_states == {"http://e0": EngineState.WHOLE, LATE: EngineState.WHOLE}


def test_the_next_push_brings_it_what_the_others_get_and_lets_it_serve(world, session):
    session.add(LATE)
    receipt = session.push(2)
    assert receipt.engines == ("http://e0", LATE)
    assert [control.server.weights for control in world.controls] == ["2", "2"]
    assert [control.server.paused for control in world.controls] == [False, False]


def test_a_push_that_fails_before_a_byte_leaves_it_paused_while_the_others_go_on(world, session):
    session.add(LATE)
    world.control.fail["pause"] = EngineRefused("no")
    with pytest.raises(UpdateFailed, match=f"{LATE} is whole but paused") as failed:
        session.push(2)
    assert (
        failed.value.hint
        == "push again: an engine that joined late, or was found paused, stays so until a push has reached it"
    )
    assert late(world).paused
    assert not world.server.paused


def test_closing_before_a_push_leaves_it_paused_and_names_it(world, session, caplog):
    session.add(LATE)
    session.close()
    assert late(world).paused
    assert f"Left paused, since no push has reached them: {LATE}" in caplog.text
    assert session.state is SessionState.CLOSED


def test_a_push_that_tears_it_is_mended_by_the_next(world, session):
    session.add(LATE)
    world.source.fail_at = 1
    with pytest.raises(UpdateFailed) as failed:
        session.push(2)
    assert isinstance(failed.value.__cause__, SourceFailed)
    assert late(world).paused
    world.source.fail_at = None
    session.push(3)
    assert (late(world).weights, late(world).paused) == ("3", False)


def test_one_that_is_there_already_is_refused(session):
    for url in ("http://e0", "http://e0/"):
        with pytest.raises(StateError, match="already"):
            session.add(url)


def test_a_closed_session_takes_nobody(session):
    session.close()
    with pytest.raises(StateError, match="closed"):
        session.add(LATE)


@pytest.mark.parametrize("step", ["probe", "pause"])
def test_one_that_does_not_answer_is_not_taken_and_the_session_goes_on(step, world, session):
    world.late = lambda control: control.fail.update({step: EngineUnreachable("nobody")})
    with pytest.raises(EngineUnreachable):
        session.add(LATE)
    world.controls.pop()
    assert session.push(2).engines == ("http://e0",)
    assert "prepare" not in world.log  # the channel is the one there was


def test_one_whose_pause_was_done_and_its_answer_lost_serves_on(world, session):
    world.late = lambda control: control.fail_late.update({"pause": EngineUnreachable("cut")})
    with pytest.raises(EngineUnreachable):
        session.add(LATE)
    assert not late(world).paused


def test_one_with_another_backend_is_refused_untouched(world, session):
    def unlike(control):
        probe = control.probe
        control.probe = lambda deadline: msgspec.structs.replace(probe(deadline), backend="other")

    world.late = unlike
    with pytest.raises(CompatibilityError, match="'other'"):
        session.add(LATE)
    assert not late(world).paused


def test_one_in_the_middle_of_anothers_update_is_torn_and_made_whole(world, session):
    world.late = lambda control: setattr(control, "found", EngineState.TORN)
    session.add(LATE)
    assert session.engine_states[LATE] is EngineState.TORN
    session.push(2)
    assert (late(world).weights, late(world).paused) == ("2", False)


def test_a_push_that_was_not_waited_for_is_collected_first(world, session):
    session.push(2, wait=False)
    session.add(LATE)
    assert world.server.weights == "2"
    assert not world.server.paused


def test_a_failed_push_that_was_not_waited_for_is_raised_and_nobody_joins(world, session):
    world.control.fail["finish"] = EngineRefused("no")
    session.push(2, wait=False)
    with pytest.raises(WeightwireError):
        session.add(LATE)
    assert LATE not in session.engine_states


def test_one_that_was_found_paused_is_let_go_on_only_by_a_push_that_reached_it(make_world):
    world = make_world(("http://e0", "http://e1"))
    world.controls[1].server.paused = True  # by somebody who had a reason
    session = world.open()
    world.control.fail["pause"] = EngineRefused("no")
    with pytest.raises(UpdateFailed, match="was found paused"):
        session.push(1)
    assert [control.server.paused for control in world.controls] == [False, True]
    world.mend_everything()
    session.push(2)
    assert [control.server.paused for control in world.controls] == [False, False]
