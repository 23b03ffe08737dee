"""What a process holds, by /proc: whether it grows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

PAGE_KB = os.sysconf("SC_PAGE_SIZE") / 1024


class Signs(msgspec.Struct, frozen=True):
    """Of one process at one moment.

    Attributes:
        memory: that is resident, in KB.
        descriptors: open files and sockets.
        threads: of it.
    """

    memory: float
    descriptors: int
    threads: int

    def holds_as_much_as(self, other: Signs) -> bool:
        """Whether descriptors and threads are as many; memory is another matter."""
        return (self.descriptors, self.threads) == (other.descriptors, other.threads)

    def __str__(self) -> str:
        """In a line."""
        return f"{self.memory / 1024:.1f} MB, {self.descriptors} file descriptors, {self.threads} threads"


def vital_signs(pid: int) -> Signs:
    """Look at a process."""
    process = Path(f"/proc/{pid}")
    resident = int((process / "statm").read_text().split()[1])
    return Signs(resident * PAGE_KB, len(list((process / "fd").iterdir())), len(list((process / "task").iterdir())))


def slope(values: Sequence[float]) -> float:
    """How much *values* grow from one to the next: that of the straight line through them."""
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    spread = sum((index - middle) ** 2 for index in range(len(values)))
    return sum((index - middle) * (value - mean) for index, value in enumerate(values)) / spread
