"""What the demo keeps of itself."""

from __future__ import annotations

import msgspec


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One push and what was seen around it.

    Attributes:
        version: what was pushed: the number of training steps done.
        loss: the trainer's loss at the last of them, in nats per byte.
        nbytes: bytes that travelled.
        phases: seconds by phase.
        before: the largest difference between engine and trainer, in log-probability of a held token, before it.
        after: the same after it.
        opening: half a sentence that is trained on.
        completion_before: how the engine completed it before the push.
        completion_after: and after it.
    """

    version: int
    loss: float
    nbytes: int
    phases: dict[str, float]
    before: float
    after: float
    opening: str
    completion_before: str
    completion_after: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How long to train, in steps, and after how many of them to push."""

    steps: int
    every: int


class Demonstration(msgspec.Struct, frozen=True, kw_only=True):
    """What ``demo --json`` writes.

    Attributes:
        engine: what was pushed into.
        steps: training steps done.
        rounds: the pushes.
        largest_difference: between engine and trainer after a push, in log-probability, over all pushes.
        seconds: how long everything took.
    """

    engine: str
    steps: int
    rounds: list[Round]
    largest_difference: float
    seconds: float
