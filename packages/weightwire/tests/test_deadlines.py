import time

import pytest
from weightwire.deadlines import Deadline
from weightwire.errors import DeadlineExceeded


def test_an_expired_deadline_has_nothing_left_and_says_what_was_being_done():
    deadline = Deadline.after(0)

    assert deadline.expired
    assert deadline.remaining() == 0.0
    with pytest.raises(DeadlineExceeded, match="0 s passed while peeling"):
        deadline.check("peeling")


def test_a_running_deadline_checks_in_silence():
    deadline = Deadline.after(60)

    deadline.check("peeling")

    assert 59 < deadline.remaining() <= 60


def test_a_tighter_deadline_never_outlives_the_wider_one():
    wide = Deadline.after(5)

    assert wide.at_most(60) is wide
    assert wide.at_most(0.01).at < time.monotonic() + 1
