import threading

import pytest
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import DeadlineExceeded
from weightwire.fanout import everywhere, first_failure, wait_for_all


def test_the_values_come_in_the_order_of_the_engines():
    assert everywhere([3, 1, 2], lambda n: n * 10, doing="x", deadline=Deadline.after(5)) == [30, 10, 20]


def test_the_calls_are_in_flight_together():
    barrier = threading.Barrier(4)

    assert len(everywhere(range(4), lambda _: barrier.wait(5), doing="x", deadline=Deadline.after(5))) == 4


def test_all_end_before_the_first_error_is_raised_and_the_others_are_noted():
    ended = []

    def work(n: int) -> None:
        ended.append(n)
        if n:
            raise ValueError(f"engine {n}")

    with pytest.raises(ValueError, match="engine 1") as caught:
        everywhere([0, 1, 2], work, doing="x", deadline=Deadline.after(5))

    assert sorted(ended) == [0, 1, 2]
    assert caught.value.__notes__ == ["another engine: engine 2"]


def test_one_that_hangs_is_left_at_the_deadline():
    release = threading.Event()
    with pytest.raises(DeadlineExceeded):
        everywhere([1], lambda _: release.wait(10), doing="x", deadline=Deadline.after(0.05))
    release.set()


def test_a_failure_shows_while_the_others_still_run():
    release = threading.Event()

    def fail() -> None:
        raise OSError("early")

    failing: Call[object] = Call(fail, doing="x")
    with pytest.raises(OSError, match="early"):
        failing.result(Deadline.after(5))
    running: Call[object] = Call(lambda: release.wait(10), doing="y")

    assert str(first_failure([running, failing])) == "early"
    release.set()
    assert wait_for_all([running], Deadline.after(5)) == [True]
