"""A crew: some ranks that train in one set-up after the other, push twice in each, and write down what came of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from launch import RANKS, torchrun

Said = dict[str, object]

OPTIONS: dict[str, object] = {"timeout": 60, "bucket_bytes": 100_000}
"""Of a crew's sessions; small packs, so that there are several."""

TOLERANCE = 1e-4
"""Of a log-probability in float32, over two implementations of one model."""


class Errand(NamedTuple):
    """Where a crew pushes, and what.

    Attributes:
        url: the engine's.
        checkpoint: what it serves, and what the crew begins with.
        out: a directory for what it says.
        options: of its sessions.
        replicas: of the engine, each of which is asked what it holds.
    """

    url: str
    checkpoint: Path
    out: Path
    options: dict[str, object]
    replicas: int = 1


def sail(errand: Errand, ranks: int, setups: Sequence[str], *, python: Path = Path(sys.executable)) -> None:
    """Run a crew to its end."""
    words = ["--url", errand.url, "--checkpoint", str(errand.checkpoint), "--out", str(errand.out)]
    words += ["--options", json.dumps(errand.options), "--replicas", str(errand.replicas)]
    torchrun(ranks, RANKS / "push_twice.py", [*words, *setups], python=python)


def reports(out: Path, ranks: int, setup: str) -> list[Said]:
    """What every rank said of one set-up; the sender first."""
    return [json.loads((out / f"{setup}.{rank}.json").read_text()) for rank in range(ranks)]


def assert_pushed(said: Sequence[Said]) -> None:
    """The engine says what a forward of the gathered weights says, after each push something else than before."""
    sender, *_ = said
    assert len(sender["off"]) == len(sender["moved"]) > 1, sender
    assert all(off < TOLERANCE for off in sender["off"]), sender
    assert all(moved > 100 * TOLERANCE for moved in sender["moved"]), sender
    assert all(each["committed"] for each in said)
