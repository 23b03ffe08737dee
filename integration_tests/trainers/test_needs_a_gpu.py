"""What can't run without a GPU says so in these words; when one of these tests fails, it can."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@pytest.fixture
def store(tmp_path) -> Iterator[dist.FileStore]:
    yield dist.FileStore(str(tmp_path / "store"), 1)
    if dist.is_initialized():
        dist.destroy_process_group()


def test_pinned_cpu_offload(store: dist.FileStore) -> None:
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    with pytest.raises(RuntimeError, match="Found no NVIDIA driver"):
        fully_shard(torch.nn.Linear(2, 2), offload_policy=CPUOffloadPolicy())


def test_one_group_for_hosts_and_accelerators(store: dist.FileStore) -> None:
    with pytest.raises(ValueError, match="ProcessGroupNCCL is only supported with GPUs"):
        dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
