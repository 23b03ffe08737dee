import threading
import time
import weakref

import pytest
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import DeadlineExceeded


def test_a_call_hands_over_its_value():
    assert Call(lambda: 7, doing="counting").result(Deadline.after(5)) == 7


def test_a_call_hands_over_its_error_to_whoever_waits():
    def fail() -> None:
        raise OSError("no")

    call = Call(fail, doing="failing")

    with pytest.raises(OSError, match="no"):
        call.result(Deadline.after(5))
    assert isinstance(call.failure(), OSError)


def test_the_waiter_leaves_at_the_deadline_while_the_call_goes_on():
    release = threading.Event()
    call = Call(lambda: release.wait(10), doing="waiting for a peer")
    began = time.monotonic()

    with pytest.raises(DeadlineExceeded, match="waiting for a peer"):
        call.result(Deadline.after(0.05))

    assert time.monotonic() - began < 2
    assert call.failure() is None
    release.set()
    assert call.result(Deadline.after(5)) is True


def test_a_running_call_does_not_keep_the_interpreter_alive():
    release, started = threading.Event(), threading.Event()
    Call(lambda: started.set() or release.wait(10), doing="hanging")
    assert started.wait(5)

    hanging = [thread for thread in threading.enumerate() if thread.name.endswith("hanging")]

    assert [thread.daemon for thread in hanging] == [True]
    release.set()


def test_a_call_that_has_ended_holds_nothing_of_what_it_worked_with():
    class Buffer:
        pass

    buffer, gone = Buffer(), threading.Event()
    weakref.finalize(buffer, gone.set)
    call = Call(lambda held=buffer: type(held).__name__, doing="working")

    assert call.result(Deadline.after(5)) == "Buffer"
    del buffer
    assert gone.wait(5)
