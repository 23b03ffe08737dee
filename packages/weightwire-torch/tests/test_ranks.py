"""The trainer's ranks: one process, or those of torch.distributed."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import torch.distributed as dist
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import ChannelError, DeadlineExceeded
from weightwire.planes import RankGroup, SingleRank
from weightwire_torch.ranks import StoreRanks, rank_group


def test_without_torch_distributed_a_trainer_is_one_rank() -> None:
    assert isinstance(rank_group(), SingleRank)


def two() -> tuple[StoreRanks, StoreRanks]:
    store = dist.HashStore()
    return StoreRanks(store, rank=0, size=2), StoreRanks(store, rank=1, size=2)


def test_what_one_rank_publishes_another_reads() -> None:
    first, second = two()
    assert isinstance(first, RankGroup)
    first.publish("a", b"\x00\xff bytes")
    assert second.read("a", Deadline.after(5.0)) == b"\x00\xff bytes"


def test_a_reader_waits_for_the_writer() -> None:
    first, second = two()
    reading = Call(lambda: second.read("later", Deadline.after(5.0)), doing="reading")
    assert not reading.wait(0.05)
    first.publish("later", b"now")
    assert reading.result(Deadline.after(5.0)) == b"now"


def test_a_key_that_nobody_writes_ends_the_wait_at_the_deadline() -> None:
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="'missing'"):
        two()[0].read("missing", Deadline.after(0.2))
    assert 0.15 < time.monotonic() - began < 2.0


PROGRAM = """
import sys, torch.distributed as dist
from weightwire.deadlines import Deadline
from weightwire_torch.ranks import rank_group
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
ranks = rank_group()
assert (ranks.rank, ranks.size) == (rank, 2)
ranks.publish(f"round/{rank}", b"ok")
assert ranks.read(f"round/{1 - rank}", Deadline.after(30)) == b"ok"
dist.barrier()
dist.destroy_process_group()
"""


def test_the_ranks_of_the_default_group_share_its_store(tmp_path) -> None:
    ranks = [subprocess.Popen([sys.executable, "-c", PROGRAM, str(rank), str(tmp_path / "store")]) for rank in range(2)]
    assert [rank.wait(60) for rank in ranks] == [0, 0]


def test_a_store_whose_host_is_gone_is_said() -> None:
    host = dist.TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    ranks = StoreRanks(
        dist.TCPStore("127.0.0.1", host.port, 1, is_master=False, wait_for_workers=False), rank=0, size=2
    )
    del host
    with pytest.raises(ChannelError, match="does not answer"):
        ranks.read("a", Deadline.after(5.0))
    with pytest.raises(ChannelError, match="does not answer"):
        ranks.publish("a", b"")
