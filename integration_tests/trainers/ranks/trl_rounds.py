"""What the trainers of TRL's have in common here: how they come to shard on a CPU, and what their engine is asked."""

from __future__ import annotations

import argparse

from accelerate import PartialState
from accelerate.utils import DistributedType
from saying import PROMPT, distance, forward
from weightwire_testing.sampling import score


def really_shard(arguments: object) -> None:
    """Accelerate turns FSDP on only where there are several accelerators, and else runs DDP without a word (1.15)."""
    arguments.device  # noqa: B018 - makes the state
    PartialState().distributed_type = DistributedType.MULTI_GPU


def served(trainer: object, trained: dict, given: argparse.Namespace) -> dict[str, object]:
    """On the sender: how far what the engine says is from what *trained* says, and from what the checkpoint did."""
    if not trainer.is_world_process_zero():
        return {}
    spoken = score(given.url, PROMPT)
    return {
        "off": distance(spoken, forward(given.checkpoint, trained)),
        "moved": distance(spoken, forward(given.checkpoint)),
        "pushes": sum("weightwire/total_s" in record for record in trainer.state.log_history),
    }
