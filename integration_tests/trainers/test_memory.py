"""A push takes no more memory beside the model than its largest group and the bucket ring, on any rank.

Over gloo an all-gather takes twice its result: torch's ProcessGroupGloo (2.10 to 2.13) collects into memory of its own
and copies from there, for FSDP2 and ZeRO-3 alike. The framework's own gather of the largest group, measured in the same
process, says what that comes to, and is what counts there; over NCCL, which writes into the result, it is the group.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from launch import RANKS, torchrun
from weightwire_testing.model import ModelShape, TinyLlama, save_checkpoint
from weightwire_testing.reference import EngineSettings, ReferenceEngine

MIB = 1024 * 1024
BUCKET = 4 * MIB
RING = 4 * BUCKET
NOISE = 8 * MIB
"""What the system's count of a process's pages moves by itself: sockets' buffers, arenas of the allocator."""


SHAPE = ModelShape(
    vocab_size=16_000, hidden_size=1024, layers=3, heads=16, kv_heads=16, head_dim=64, intermediate_size=2816
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 275 MiB: groups of 62, three times 49, and 62."""
    return save_checkpoint(TinyLlama(SHAPE), tmp_path_factory.mktemp("large") / "checkpoint")


@pytest.fixture(scope="module")
def engine(checkpoint: Path):
    with ReferenceEngine(EngineSettings(checkpoint=str(checkpoint))) as running:
        yield running


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of a process, and lets it be reset")
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("ranks", "setup"), [(2, "fsdp2"), (2, "zero3"), (1, "lora")])
def test_one_group_and_the_ring_at_most(ranks: int, setup: str, checkpoint: Path, engine, tmp_path: Path) -> None:
    options = f"--options={json.dumps({'timeout': 120, 'bucket_bytes': BUCKET})}"
    words = [f"--url={engine.url}", f"--checkpoint={checkpoint}", f"--out={tmp_path}", options]
    torchrun(ranks, RANKS / "memory.py", [*words, setup], MALLOC_MMAP_THRESHOLD_="65536")
    for rank in range(ranks):
        said = json.loads((tmp_path / f"{setup}.{rank}.json").read_text())
        assert said["model"] > 4 * said["largest_group"]
        assert said["own"] < 2 * said["largest_group"] + NOISE, "the framework itself takes more than was known"
        assert said["extra"] < max(said["own"], said["largest_group"]) + RING + NOISE, (rank, said)
