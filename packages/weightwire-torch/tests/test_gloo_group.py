"""Groups beside the global one: who may join, who is waited for, and how one leaves."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import ChannelError, ControlError, DeadlineExceeded
from weightwire_torch.gloo_group import GlooGroup

SOON = 10.0


def pair(timeout: float = SOON) -> tuple[GlooGroup, GlooGroup]:
    """Two members, both in this process."""
    first = GlooGroup.host(world_size=2, timeout=timeout)
    second = GlooGroup.connect("127.0.0.1", first.port, rank=1, world_size=2, timeout=timeout)
    joining = Call(lambda: second.join(Deadline.after(SOON)), doing="joining")
    first.join(Deadline.after(SOON))
    joining.result(Deadline.after(SOON))
    return first, second


@pytest.fixture
def two() -> Iterator[tuple[GlooGroup, GlooGroup]]:
    both = pair()
    yield both
    for one in both:
        one.close()


def test_bytes_go_from_rank_0_to_the_others(two: tuple[GlooGroup, GlooGroup]) -> None:
    sent, got = torch.arange(100, dtype=torch.uint8), torch.zeros(100, dtype=torch.uint8)
    receiving = Call(lambda: two[1].broadcast(got), doing="receiving")
    two[0].broadcast(sent)
    receiving.result(Deadline.after(SOON))
    assert torch.equal(sent, got)


def test_a_sum_goes_over_all_members(two: tuple[GlooGroup, GlooGroup]) -> None:
    numbers = [torch.tensor([1.0]), torch.tensor([2.5])]
    adding = Call(lambda: two[1].all_reduce(numbers[1]), doing="adding")
    two[0].all_reduce(numbers[0])
    adding.result(Deadline.after(SOON))
    assert [number.item() for number in numbers] == [3.5, 3.5]
    two[0].close()
    with pytest.raises(ChannelError, match="not open"):
        two[0].all_reduce(numbers[0])


def test_the_store_listens_on_loopback_alone(two: tuple[GlooGroup, GlooGroup]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; says which address this machine has besides loopback
        outside = probe.getsockname()[0]
    if outside.startswith("127."):
        pytest.skip("this machine has no address besides loopback")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((outside, two[0].port), timeout=2.0)


def test_a_member_that_does_not_come_is_named_at_the_deadline() -> None:
    first = GlooGroup.host(world_size=3, timeout=SOON)
    second = GlooGroup.connect("127.0.0.1", first.port, rank=1, world_size=3, timeout=SOON)
    joining = Call(lambda: second.join(Deadline.after(1.0)), doing="joining")
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="rank 2 of 3"):
        first.join(Deadline.after(0.5))
    assert 0.4 < time.monotonic() - began < 2.0
    first.close()
    with pytest.raises((DeadlineExceeded, ChannelError)):
        joining.result(Deadline.after(SOON))
    second.close()


def test_joining_ends_when_the_watch_reports() -> None:
    refused = ControlError("the engine said no")
    first = GlooGroup.host(world_size=2, timeout=SOON)
    with pytest.raises(ControlError) as caught:
        first.join(Deadline.after(SOON), lambda: refused)
    assert caught.value is refused
    first.close()


def test_two_members_of_one_rank_are_refused() -> None:
    first = GlooGroup.host(world_size=3, timeout=SOON)
    members = [GlooGroup.connect("127.0.0.1", first.port, rank=1, world_size=3, timeout=SOON) for _ in range(2)]
    waiting = Call(lambda: members[0].join(Deadline.after(1.0)), doing="joining")
    while first.store is not None and not first.store.check(["weightwire/here/1"]):
        assert not waiting.done
    with pytest.raises(ChannelError, match="rank 1"):
        members[1].join(Deadline.after(SOON))
    for group in (first, *members):
        group.close()


def test_a_store_that_is_not_there_is_said_with_the_option_to_set() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ChannelError, match="advertise"):
        GlooGroup.connect("127.0.0.1", port, rank=1, world_size=2, timeout=0.5)


def test_a_port_that_is_taken_and_an_address_of_another_machine_are_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ChannelError, match="Can't listen"):
        GlooGroup.host("127.0.0.1", taken.getsockname()[1], world_size=2, timeout=SOON)
    with pytest.raises(ChannelError, match=r"192\.0\.2\.1"):
        GlooGroup.host("192.0.2.1", world_size=2, timeout=SOON)


def test_an_interface_that_is_not_there_is_refused() -> None:
    with pytest.raises(ChannelError, match="no-such-one"):
        GlooGroup.host(world_size=2, timeout=SOON, interface="no-such-one")


def test_a_collective_ends_at_the_timeout_of_the_group() -> None:
    first, second = pair(timeout=0.5)
    with pytest.raises(DeadlineExceeded, match=r"0\.5 s"):
        second.broadcast(torch.zeros(10, dtype=torch.uint8))
    for group in (first, second):
        group.close()


def blocked(two: tuple[GlooGroup, GlooGroup], rank: int) -> Call[None]:
    """One member in a collective that the other does not enter."""
    inside = threading.Event()

    def enter() -> None:
        flight = two[rank].begin(torch.zeros(64 * 1024 * 1024, dtype=torch.uint8))
        inside.set()
        flight.land()

    call = Call(enter, doing="broadcasting")
    assert inside.wait(SOON)
    return call


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("leaver", [0, 1])
def test_aborting_frees_whoever_is_inside_a_collective(
    two: tuple[GlooGroup, GlooGroup], rank: int, leaver: int
) -> None:
    call = blocked(two, rank)
    began = time.monotonic()
    two[leaver].abort()
    assert time.monotonic() - began < 0.5
    with pytest.raises(ChannelError):
        call.result(Deadline.after(5.0))
    two[leaver].abort()


def test_a_group_that_was_left_takes_no_broadcast(two: tuple[GlooGroup, GlooGroup]) -> None:
    for leave in (two[0].close, two[1].abort):
        leave()
        leave()
    for group in two:
        with pytest.raises(ChannelError, match="not open"):
            group.broadcast(torch.zeros(1, dtype=torch.uint8))
        with pytest.raises(ChannelError, match="closed"):
            group.join(Deadline.after(1.0))


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def native_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def settles(count: Callable[[], int], at_most: int) -> bool:
    """Whether a count comes down to a bound; what closes does so on threads of its own."""
    deadline = Deadline.after(SOON)
    while count() > at_most and not deadline.expired:
        time.sleep(0.01)
    return count() <= at_most


@pytest.mark.parametrize("leave", [GlooGroup.close, GlooGroup.abort])
def test_groups_leave_no_file_and_no_thread_behind(leave: Callable[[GlooGroup], None]) -> None:
    for group in pair():  # what torch makes once stays
        group.close()
    files, threads = open_files(), native_threads() if sys.platform == "linux" else 0
    for _ in range(30):
        for group in pair():
            leave(group)
    assert settles(open_files, files)
    assert sys.platform != "linux" or settles(native_threads, threads)


def test_hosts_that_nobody_joins_leave_nothing_behind_either() -> None:
    GlooGroup.host(world_size=2, timeout=SOON).close()
    files = open_files()
    for _ in range(30):
        GlooGroup.host(world_size=2, timeout=SOON).close()
    assert settles(open_files, files)


PROGRAM = """
import torch
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire_torch.gloo_group import GlooGroup
first = GlooGroup.host(world_size=2, timeout=30)
second = GlooGroup.connect("127.0.0.1", first.port, rank=1, world_size=2, timeout=30)
joining = Call(lambda: second.join(Deadline.after(30)), doing="joining")
first.join(Deadline.after(30))
joining.result(Deadline.after(30))
"""
ABORT = """
second.begin(torch.zeros(100, dtype=torch.uint8))
first.abort()
second.abort()
"""
LEFT_OPEN = """
from weightwire_torch import gloo
threads = [Call(second.begin(torch.zeros(1 << 20, dtype=torch.uint8)).land, doing="waiting") for _ in range(20)]
while gloo.waits.over(0.001):
    pass
"""


@pytest.mark.parametrize("end", [ABORT, LEFT_OPEN, LEFT_OPEN + "second.abort()"])
def test_a_program_may_end_right_after_an_abort_or_with_threads_inside_a_collective(end: str) -> None:
    program = [sys.executable, "-c", PROGRAM + end]
    done = subprocess.run(program, timeout=60, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
