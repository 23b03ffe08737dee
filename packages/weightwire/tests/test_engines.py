"""Several engines: calls to all of them, and who belongs to the group."""

from __future__ import annotations

import threading

import pytest
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.engine import Engine
from weightwire.engines import Engines
from weightwire.errors import EngineRefused, EngineUnreachable, StateError
from weightwire.states import EngineState

SOON = Deadline.after(600.0)  # of the whole suite, of which these tests are a part
URLS = ("http://e0", "http://e1", "http://e2")


@pytest.fixture
def world(make_world):
    return make_world(URLS)


@pytest.fixture
def controls(world):
    return world.controls


@pytest.fixture
def engines(world):
    return Engines([Engine(control.url, control) for control in world.controls], world.make_engine)


def group(engines: Engines) -> list[str]:
    return [engine.url for engine in engines]


def test_the_first_time_all_must_answer(engines, controls):
    controls[1].server.alive = False
    with pytest.raises(EngineUnreachable) as caught:
        engines.probe(SOON)
    assert caught.value.where.engine == "http://e1"


def test_later_one_that_does_not_answer_is_lost_and_left_out(engines, controls, caplog):
    assert len(engines.probe(SOON)) == 3
    controls[1].server.alive = False
    assert [info.url for info in engines.probe(SOON)] == ["http://e0", "http://e2"]
    assert group(engines) == ["http://e0", "http://e2"]
    assert engines.lost() == ["http://e1"]
    assert "http://e1 is lost, and left out" in caplog.text


def test_a_lost_one_that_answers_again_is_asked_only_when_it_is_to_be_taken_back(engines, controls):
    engines.probe(SOON)
    controls[1].server.alive = False
    engines.probe(SOON)
    controls[1].server.start()
    engines.probe(SOON)
    assert group(engines) == ["http://e0", "http://e2"]
    engines.readmit = True
    engines.probe(SOON)
    assert group(engines) == list(URLS)
    assert engines.states()["http://e1"] is EngineState.TORN


def test_when_all_are_lost_all_are_asked(engines, controls):
    engines.probe(SOON)
    for control in controls:
        control.server.alive = False
    with pytest.raises(EngineUnreachable):
        engines.probe(SOON)
    controls[2].server.start()
    engines.probe(SOON)
    assert group(engines) == ["http://e2"]


def test_one_that_is_unfit_is_not_gone_on_without(engines, controls):
    engines.probe(SOON)
    controls[0].fail["probe"] = StateError("asleep")
    with pytest.raises(StateError, match="asleep"):
        engines.probe(SOON)


def test_one_that_was_lost_and_is_unfit_is_left_out(engines, controls):
    engines.probe(SOON)
    engines.members[0].state = EngineState.LOST
    controls[0].fail["probe"] = StateError("asleep")
    engines.readmit = True
    engines.probe(SOON)
    assert group(engines) == ["http://e1", "http://e2"]


def test_all_work_at_the_same_time_and_the_values_keep_their_order(engines):
    together = threading.Barrier(3)

    def work(engine: Engine) -> str:
        together.wait(5.0)
        return engine.url

    assert engines.all(work, "working", SOON) == list(URLS)


def test_an_error_says_whose_it_is_and_the_others_are_noted_on_it(engines):
    def work(engine: Engine) -> None:
        if engine.url != "http://e0":
            raise EngineRefused(f"{engine.url} said no")

    with pytest.raises(EngineRefused) as caught:
        engines.all(work, "working", SOON)
    assert caught.value.where.engine == "http://e1"
    assert any("http://e2 said no" in note for note in caught.value.__notes__)


def test_a_call_that_was_left_behind_is_waited_for_before_anything_is_asked(engines):
    go_on = threading.Event()
    call = engines.remember(Call(lambda: go_on.wait(5.0), doing="waiting"))
    engines.quiesce(Deadline.after(0.05))
    assert not call.done
    go_on.set()
    engines.quiesce(SOON)
    assert call.done


def test_one_more_joins_behind_the_others_and_is_paused(engines, world):
    engines.probe(SOON)
    joined = engines.add("http://e3", SOON, fit=lambda info: None)
    assert group(engines) == [*URLS, "http://e3"]
    assert (joined.behind, joined.held, world.controls[-1].paused) == (True, True, True)


def test_one_that_does_not_fit_is_let_go_of_untouched(engines, world):
    def unfit(info):
        raise StateError("unlike the others")

    engines.probe(SOON)
    with pytest.raises(StateError, match="unlike"):
        engines.add("http://e3", SOON, fit=unfit)
    assert group(engines) == list(URLS)
    assert (world.controls[-1].paused, world.log[-1]) == (False, "close control")
