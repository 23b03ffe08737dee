"""What a worker hears of a sender that goes, however it goes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from weightwire.deadlines import Deadline
from weightwire.errors import ChannelError
from weightwire_torch.lifeline import Lifeline, Tether
from weightwire_torch.listening import Place
from weightwire_torch.nccl_communicator import wait_until

SECONDS = 20.0
SENDER = """
import time
from weightwire_torch.lifeline import Lifeline
from weightwire_torch.listening import Place
lifeline = Lifeline(Place("127.0.0.1"), workers=1)
print(lifeline.port, flush=True)
time.sleep(60)
"""


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = Deadline.after(SECONDS)
    wait_until(condition, lambda: deadline.check("waiting"))


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_every_worker_is_tied_although_nobody_accepts_it_and_hears_of_the_end(address) -> None:
    lifeline = Lifeline(Place(address), workers=20)
    tethers = [Tether.tied_to(address, lifeline.port, timeout=SECONDS) for _ in range(20)]
    assert [tether.watch() for tether in tethers] == [None] * 20
    lifeline.cut()
    lifeline.cut()
    for tether in tethers:
        wait_for(lambda tether=tether: isinstance(tether.watch(), ChannelError))
        tether.close()
        tether.close()


def test_a_sender_that_is_killed_needs_no_last_words() -> None:
    with subprocess.Popen([sys.executable, "-c", SENDER], stdout=subprocess.PIPE, text=True) as sender:
        assert sender.stdout is not None
        tether = Tether.tied_to("127.0.0.1", int(sender.stdout.readline()), timeout=SECONDS)
        assert tether.watch() is None
        sender.kill()
        wait_for(lambda: tether.watch() is not None)
    tether.close()


def test_nobody_at_the_other_end_is_said_with_the_option_to_set() -> None:
    lifeline = Lifeline(Place("127.0.0.1"), workers=1)
    lifeline.cut()
    with pytest.raises(ChannelError, match=f"reach the sender at 127.0.0.1:{lifeline.port}") as caught:
        Tether.tied_to("127.0.0.1", lifeline.port, timeout=SECONDS)
    assert "advertise" in caught.value.hint
