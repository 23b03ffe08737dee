"""What the cells gave: kept as it comes, so that a run can go on where one stopped."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from cells import Cell, Found, Row, differences

FOLDER = Path(__file__).parent.parent.parent / ".faults"


class Kept(msgspec.Struct, frozen=True):
    """One cell that was played.

    Attributes:
        row: the expectation it was played against.
        found: what became of it.
        seconds: how long it took.
    """

    row: Row
    found: Found
    seconds: float


class Results:
    """What was found, by the cell's name, a line of JSON each, written as soon as it is known."""

    def __init__(self, name: str, *, go_on: bool) -> None:
        """Read what an earlier run left, or begin anew.

        Args:
            name: of the table, which is the file's.
            go_on: keep what is there, but for cells whose expectation has changed since.
        """
        self._path = FOLDER / f"{name}.jsonl"
        self._kept: dict[str, Kept] = {}
        if go_on and self._path.is_file():
            lines = self._path.read_bytes().splitlines()
            self._kept = dict(msgspec.json.decode(line, type=tuple[str, Kept]) for line in lines)
        else:
            FOLDER.mkdir(exist_ok=True)
            self._path.unlink(missing_ok=True)

    def get(self, cell: Cell) -> Found | None:
        """What became of a cell; None where it was not played against what is expected of it now."""
        kept = self._kept.get(str(cell))
        return kept.found if kept is not None and kept.row == cell.row else None

    def good(self, cell: Cell) -> bool:
        """Whether a cell was played, and gave what is expected of it."""
        found = self.get(cell)
        return found is not None and not differences(cell.row, found)

    def put(self, cell: Cell, found: Found, *, seconds: float) -> None:
        """Keep it."""
        kept = Kept(cell.row, found, round(seconds, 1))
        self._kept[str(cell)] = kept
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode((str(cell), kept)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
