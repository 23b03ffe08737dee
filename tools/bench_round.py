"""What a round costs besides its bytes: a small model pushed again and again into the reference engine.

Usage: ``uv run --frozen python tools/bench_round.py [--rounds N]``; exit code 1 when the median is over its target. The
model has a megabyte, which gloo moves in about one millisecond; the rest is calls, checks and agreement. Run it on a
quiet machine: it is a benchmark, not a test.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import weightwire
from weightwire_testing.model import TinyLlama, save_checkpoint
from weightwire_testing.reference import EngineSettings, ReferenceEngine

TARGET = 15.0
"""Milliseconds."""

WARM_UP = 5


def measure(url: str, rounds: int) -> tuple[list[float], dict[str, list[float]]]:
    """Push *rounds* times over one session.

    Returns:
        Milliseconds of each round, and of each of its phases by name.
    """
    whole: list[float] = []
    phases: dict[str, list[float]] = {}
    with weightwire.connect(url, TinyLlama(seed=1)) as session:
        for number in range(-WARM_UP, rounds):
            began = time.perf_counter()
            receipt = session.push(number)
            if number >= 0:
                whole.append((time.perf_counter() - began) * 1000)
                for name, seconds in receipt.phases.items():
                    phases.setdefault(name, []).append(seconds * 1000)
    return whole, phases


def main() -> int:
    """Print the table; 1 when a round costs more than the target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="rounds to measure")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = save_checkpoint(TinyLlama(seed=0), Path(folder))
        with ReferenceEngine(EngineSettings(checkpoint=str(checkpoint))) as engine:
            whole, phases = measure(engine.url, rounds)
    print(f"{f'milliseconds, {rounds} rounds':<24}{'least':>8}{'median':>8}{'most':>8}")
    for name, times in {**phases, f"a round (target {TARGET:.0f})": whole}.items():
        print(f"{name:<24}{min(times):>8.1f}{median(times):>8.1f}{max(times):>8.1f}")
    return int(median(whole) > TARGET)


if __name__ == "__main__":
    sys.exit(main())
