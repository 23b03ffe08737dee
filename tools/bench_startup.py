"""How long ``import weightwire`` and the discovery of all plugins take, in fresh processes.

Usage: ``uv run --frozen python tools/bench_startup.py [--runs N]``; exit code 1 when a median is over its target. The
interpreter's own start is not counted. Run it on a quiet machine: it is a benchmark, not a test.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from statistics import median

TARGETS = {"import weightwire": 150.0, "weightwire.plugins()": 100.0}
"""Milliseconds, by what is timed; each is timed after the ones before it."""

PROGRAM = """
import time
for statement in {statements!r}:
    began = time.perf_counter()
    exec(statement)
    print((time.perf_counter() - began) * 1000)
"""


def measure() -> list[float]:
    """Milliseconds of each statement, in one fresh process."""
    program = PROGRAM.format(statements=list(TARGETS))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return [float(line) for line in done.stdout.split()]


def main() -> int:
    """Print the table; 1 when something is over its target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15, help="fresh processes to start")
    runs = parser.parse_args().runs
    measure()  # the first one compiles bytecode
    columns = list(zip(*(measure() for _ in range(runs)), strict=True))
    print(f"{f'milliseconds, {runs} runs':<24}{'least':>8}{'median':>8}{'most':>8}{'target':>8}")
    for (statement, target), times in zip(TARGETS.items(), columns, strict=True):
        print(f"{statement:<24}{min(times):>8.1f}{median(times):>8.1f}{max(times):>8.1f}{target:>8.0f}")
    over = [median(times) > target for times, target in zip(columns, TARGETS.values(), strict=True)]
    return int(any(over))


if __name__ == "__main__":
    sys.exit(main())
