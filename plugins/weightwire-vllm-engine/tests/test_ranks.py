"""Each worker of a server takes a place of its own."""

from __future__ import annotations

from dataclasses import dataclass

from weightwire_vllm_engine.ranks import worker_rank


@dataclass
class Parallel:
    rank: int
    world_size: int
    data_parallel_index: int = 0


def test_the_workers_of_a_replica_follow_the_offset():
    assert [worker_rank(Parallel(rank, 2), 1) for rank in (0, 1)] == [1, 2]


def test_replicas_follow_each_other():
    ranks = [worker_rank(Parallel(rank, 2, replica), 5) for replica in (0, 1) for rank in (0, 1)]
    assert ranks == [5, 6, 7, 8]
