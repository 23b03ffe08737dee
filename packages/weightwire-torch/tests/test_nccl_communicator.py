"""One membership: no call is made to freed memory, and no wait is without an end."""

from __future__ import annotations

import threading

import pytest
from weightwire.deadlines import Deadline
from weightwire.errors import ChannelError, ControlError, DeadlineExceeded
from weightwire_torch.broadcasting import Guard, all_well
from weightwire_torch.nccl_communicator import Communicator, wait_until
from weightwire_torch.nccl_errors import Result


class ScriptedNccl:
    """Answers with *states* in turn, and the last one for ever; remembers what was called."""

    version = "2.29.7"

    def __init__(self, *states: int) -> None:
        self.states = list(states)
        self.called: list[str] = []
        self.abort_may_end = threading.Event()
        self.abort_may_end.set()

    def unique_id(self) -> bytes:
        return bytes(128)

    def enter(self, unique_id: bytes, *, rank: int, world_size: int) -> int:
        self.called.append(f"enter {rank}/{world_size}")
        return 7

    def state(self, handle: int) -> int:
        assert not {"abort"} & set(self.called), "a call to freed memory"
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def add_up(self, handle: int, pointer: int, *, stream: int) -> None:
        self.called.append("add_up")

    def broadcast(self, handle: int, pointer: int, *, nbytes: int, stream: int) -> None:
        self.called.append(f"broadcast {nbytes}")

    def abort(self, handle: int) -> None:
        self.called.append("abort")
        self.abort_may_end.wait(10.0)

    def words(self, result: int) -> str:
        return f"result {result}"

    def last_words(self) -> str:
        return "a warning"


def entered(*states: int) -> tuple[ScriptedNccl, Communicator]:
    nccl = ScriptedNccl(*states)
    return nccl, Communicator.enter(nccl, bytes(128), rank=0, world_size=2)


def guard(seconds: float = 10.0) -> Guard:
    return Guard(Deadline.after(seconds), all_well)


def test_settling_waits_until_the_call_is_done() -> None:
    nccl, inside = entered(Result.IN_PROGRESS, Result.IN_PROGRESS, Result.SUCCESS)
    inside.settle(guard(), "joining")
    assert nccl.states == [Result.SUCCESS]


def test_settling_ends_at_the_deadline() -> None:
    _, inside = entered(Result.IN_PROGRESS)
    with pytest.raises(DeadlineExceeded, match="while joining"):
        inside.settle(guard(0.05), "joining")


def test_settling_ends_when_the_watch_reports() -> None:
    _, inside = entered(Result.IN_PROGRESS)
    refused = ControlError("no")
    with pytest.raises(ControlError) as caught:
        inside.settle(Guard(Deadline.after(10.0), lambda: refused), "joining")
    assert caught.value is refused


@pytest.mark.parametrize("state", [Result.REMOTE_ERROR, Result.SYSTEM_ERROR, 99])
def test_a_broken_communicator_says_so_in_nccls_words(state) -> None:
    _, inside = entered(state)
    with pytest.raises(ChannelError, match=f"while sending: result {int(state)} \\(a warning\\)"):
        inside.check("sending")


def test_checking_does_not_mind_a_call_under_way() -> None:
    _, inside = entered(Result.IN_PROGRESS)
    inside.check("sending")


def test_nothing_is_called_after_an_abort() -> None:
    nccl, inside = entered(Result.SUCCESS)
    leaving = inside.abort()
    assert leaving is not None
    leaving.result(Deadline.after(5.0))
    for call in (
        lambda: inside.check("x"),
        lambda: inside.settle(guard(), "x"),
        lambda: inside.add_up(0, 0),
        lambda: inside.broadcast(0, 1, stream=0),
    ):
        with pytest.raises(ChannelError, match="closed or aborted"):
            call()
    assert nccl.called == ["enter 0/2", "abort"]


def test_an_abort_returns_at_once_and_happens_once() -> None:
    nccl, inside = entered(Result.IN_PROGRESS)
    nccl.abort_may_end.clear()
    leaving = inside.abort()
    assert inside.abort() is None
    assert leaving is not None
    assert not leaving.done
    nccl.abort_may_end.set()
    leaving.result(Deadline.after(5.0))
    assert nccl.called.count("abort") == 1


def test_closing_waits_for_the_last_collective_and_then_leaves_once() -> None:
    nccl, inside = entered(Result.IN_PROGRESS, Result.IN_PROGRESS, Result.SUCCESS)
    inside.close(Deadline.after(5.0))
    inside.close(Deadline.after(5.0))
    assert nccl.states == [Result.SUCCESS]
    assert nccl.called == ["enter 0/2", "abort"]


def test_closing_what_hangs_aborts_in_time() -> None:
    nccl, inside = entered(Result.IN_PROGRESS)
    nccl.abort_may_end.clear()
    inside.close(Deadline.after(0.1))
    late = Deadline.after(5.0)
    wait_until(lambda: nccl.called[-1] == "abort", lambda: late.check("aborting"))  # on a thread that may just begin
    nccl.abort_may_end.set()


def test_closing_what_broke_aborts() -> None:
    nccl, inside = entered(Result.REMOTE_ERROR)
    inside.close(Deadline.after(5.0))
    assert nccl.called == ["enter 0/2", "abort"]


def test_a_wait_asks_at_least_once_and_checks_between_two_looks() -> None:
    looked: list[str] = []
    wait_until(lambda: looked.append("look") or looked.count("look") == 3, lambda: looked.append("check"))
    assert looked == ["look", "check", "look", "check", "look"]
