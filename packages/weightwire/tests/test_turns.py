"""A session is for one thread at a time; who comes meanwhile disturbs nothing."""

import os
import threading

import pytest
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import StateError
from weightwire.states import EngineState, SessionState
from weightwire.turns import Turns

CALLS = {
    "push()": lambda session: session.push(2),
    "wait()": lambda session: session.wait(),
    "recover()": lambda session: session.recover(),
    "add()": lambda session: session.add("http://late"),
    "close()": lambda session: session.close(),
    "open()": lambda session: session.open(),
}


class Held:
    """A weight source that stays in its first group until it is let go."""

    def __init__(self, source) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()
        self._gather = source.gather
        source.gather = self.gather

    def gather(self, group):
        self.entered.set()
        assert self.go_on.wait(10)
        return self._gather(group)


def test_threads_that_come_during_a_push_are_refused_and_it_goes_on_undisturbed(world):
    session = world.open()
    held = Held(world.source)
    push = Call(lambda: session.push(1), doing="pushing")
    assert held.entered.wait(10)
    before = list(world.log)
    for name, call in CALLS.items():
        with pytest.raises(StateError, match=r"Another thread is in push\(\)") as caught:
            call(session)
        assert name in caught.value.message
        assert "one thread" in caught.value.hint
    assert world.log == before
    held.go_on.set()

    assert push.result(Deadline.after(10)).version == "1"
    assert (world.server.version, world.server.crimes) == ("1", [])
    assert session.state is SessionState.READY
    assert session.push(3).version == "3"
    session.close()


def test_of_threads_that_push_at_once_one_wins_and_the_engine_holds_its_version(world):
    session = world.open()
    barrier = threading.Barrier(4)

    def push(version):
        barrier.wait(10)
        try:
            return session.push(version).version
        except StateError:
            return ""

    calls = [Call(lambda version=version: push(version), doing="pushing") for version in range(4)]
    pushed = {call.result(Deadline.after(20)) for call in calls} - {""}

    assert pushed
    assert world.server.version in pushed
    assert session.engine_states == {"http://e0": EngineState.WHOLE}
    assert world.server.crimes == []


def test_a_session_may_wander_from_thread_to_thread(world):
    session = world.open()
    assert Call(lambda: session.push(1), doing="pushing").result(Deadline.after(10)).version == "1"
    assert session.push(2).version == "2"


def test_the_thread_that_has_the_turn_may_call_from_within():
    turns = Turns()
    with turns.taken("push()"), turns.taken("wait()"):
        pass
    with turns.taken("close()"):
        pass


def test_an_error_gives_the_turn_back():
    turns = Turns()
    with pytest.raises(KeyError), turns.taken("push()"):
        raise KeyError
    Call(lambda: turns.taken("push()").__enter__(), doing="pushing").result(Deadline.after(10))


def test_in_a_fork_nobody_else_has_the_turn(monkeypatch):
    turns = Turns()
    has_it, done = threading.Event(), threading.Event()

    def hold() -> None:
        with turns.taken("push()"):
            has_it.set()
            done.wait(10)

    holder = Call(hold, doing="holding")
    assert has_it.wait(10)
    with pytest.raises(StateError), turns.taken("close()"):
        pass
    here = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: here + 1)
    with turns.taken("close()"):
        pass
    done.set()
    holder.result(Deadline.after(10))
