"""What is asked of a trainer of Transformers or TRL. Nothing of either is imported."""

from __future__ import annotations

from typing import Protocol

import torch


class State(Protocol):
    """How far a trainer is.

    Attributes:
        global_step: optimizer steps so far.
    """

    global_step: int


class Control(Protocol):
    """What a trainer does at its next opportunity.

    Attributes:
        should_evaluate: evaluate.
        should_log: write a record.
    """

    should_evaluate: bool
    should_log: bool


class Callbacks(Protocol):
    """What a trainer keeps its callbacks in.

    Attributes:
        callbacks: in the order in which they are called.
    """

    callbacks: list[object]


class Trainer(Protocol):
    """The part of ``transformers.Trainer`` that is used here.

    Attributes:
        model: the model that was passed, which may be a ``PeftModel``.
        model_wrapped: the same in all that the trainer put around it: DDP, FSDP2, a DeepSpeed engine.
        state: how far it is.
        control: what it does next.
        callback_handler: its callbacks.
    """

    model: torch.nn.Module
    model_wrapped: torch.nn.Module
    state: State
    control: Control
    callback_handler: Callbacks

    def is_world_process_zero(self) -> bool:
        """Whether this process is rank 0."""

    def add_callback(self, callback: object) -> None:
        """Call this one too."""


def version_of(trainer: Trainer) -> str:
    """What engines should call the trainer's weights: its global step."""
    return str(trainer.state.global_step)
