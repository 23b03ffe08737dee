"""Trainers of TRL's and Transformers', the real ones, against the reference engine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))  # the helpers beside the tests

from saying import same_words
from trl_on_cpu import async_grpo
from weightwire_trl import WeightTransfer

OPTIONS = {"timeout": 30, "bucket_bytes": 100_000}


@pytest.fixture
def grpo(tiny_checkpoint, tmp_path):
    """Makes TRL's trainer with a transfer to a URL, bound or not."""

    def make(url, *, bind=True, options=OPTIONS, **more):
        transfer = WeightTransfer(url, options)
        trainer = async_grpo(tiny_checkpoint, tmp_path / "out", transfer, **more)
        if bind:
            transfer.bind(trainer)
        return trainer, transfer

    return make


@pytest.fixture
def served(tiny_checkpoint):
    """Whether an engine says what a plain forward of a model's weights says, and not what it said at the start."""
    return lambda url, model: same_words(url, tiny_checkpoint, model)
