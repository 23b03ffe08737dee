"""Which place a worker takes in the channel's group."""

from __future__ import annotations

from typing import Protocol


class ParallelConfig(Protocol):
    """The part of vLLM's configuration that says which worker this is."""

    rank: int
    world_size: int
    data_parallel_index: int


def worker_rank(config: ParallelConfig, offset: int) -> int:
    """This worker's rank: the replicas follow each other, in each the workers in vLLM's own order (TP x PP).

    ``data_parallel_index`` counts the replicas of one server, also those that ``data_parallel_rank`` calls 0 because
    they run apart from each other (a dense model). vLLM 0.17 to 0.33 have it and count so themselves.
    """
    return offset + config.data_parallel_index * config.world_size + config.rank
