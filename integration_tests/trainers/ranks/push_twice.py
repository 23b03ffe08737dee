"""Every rank of a trainer: per set-up two steps, two pushes, what the engine then says and what it should."""

from __future__ import annotations

import argparse
import os

import starting
import torch
import torch.distributed as dist
import weightwire
import words
from models import PROMPT, load, scores
from setups import make
from weightwire_testing.sampling import score

PUSHES = 2


def distance(one: list[float], other: list[float]) -> float:
    return max(abs(x - y) for x, y in zip(one, other, strict=True))


def furthest(url: str, expected: list[float], replicas: int) -> float:
    """How far what is served is from what is expected, at most, over all replicas of a data-parallel engine."""
    chosen = list(range(replicas)) if replicas > 1 else [None]
    return max(distance(score(url, PROMPT, replica=replica), expected) for replica in chosen)


def run(setup: str, given: argparse.Namespace) -> dict[str, object]:
    trainer = make(setup, given.checkpoint)
    before = scores(given.checkpoint, dict(load(given.checkpoint).state_dict()))
    off, moved = [], []
    with weightwire.connect(given.url, trainer.model, given.options) as session:
        for number in range(PUSHES):
            trainer.step(number)
            receipt = session.push(version=f"{setup}-{number}")
            weights = trainer.weights()
            if dist.get_rank() == 0:
                expected = scores(given.checkpoint, weights)
                off.append(furthest(given.url, expected, given.replicas))
                moved.append(distance(expected, before))
                before = expected
    return {"off": off, "moved": moved, "committed": receipt.committed, "torch": torch.__version__}


def main() -> None:
    parser = words.parser()
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("setups", nargs="+")
    given = parser.parse_args()
    starting.start()
    for setup in given.setups:
        words.say(given.out, setup, run(setup, given))
    dist.destroy_process_group()
    os._exit(0)  # threads of a framework need not be waited for


if __name__ == "__main__":
    main()
