"""What the runs gave: kept as it comes, so that a run can go on where one stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
from matrix_cells import ROOT, Cell, TrainerSide

WORKING = ROOT / ".matrix" / "results.json"
"""Of the run under way, or the last one, on this machine."""

RECORDED = ROOT / "integration_tests" / "matrix_results.json"
"""Of the last run that was recorded; the documents are made of it."""

NOT_RUN = "not run"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What one cell gave.

    Attributes:
        outcome: passed, refused as it should, or failed; or why there is none: ``not run``.
        day: of the run, in ISO form.
        seconds: it took.
        figures: what was measured, or what went wrong, in a line.
        commit: of the sources that were run.
    """

    outcome: Literal["pass", "refuse", "fail", "not run"]
    day: str
    seconds: float
    figures: str
    commit: str


class Results:
    """Results by cell, in a file that is whole at any time."""

    def __init__(self, path: Path) -> None:
        """Read what is there."""
        self._path = path
        exists = path.is_file()
        self._by_id = msgspec.json.decode(path.read_bytes(), type=dict[str, Result]) if exists else {}

    def get(self, name: str) -> Result | None:
        """What a cell gave; None where it was never tried."""
        return self._by_id.get(name)

    def put(self, name: str, result: Result) -> None:
        """Keep it, on disk as well."""
        self._by_id[name] = result
        self.write(self._path)

    def take_over(self, newer: Results, names: set[str]) -> None:
        """Take the results that *newer* has, keep the others, and forget cells that the matrix no longer has."""
        both = self._by_id | {name: result for name, result in newer._by_id.items() if result.outcome != NOT_RUN}
        self._by_id = {name: result for name, result in both.items() if name in names}
        self.write(self._path)

    def forget(self, names: set[str]) -> None:
        """Let these cells be run anew."""
        self._by_id = {name: result for name, result in self._by_id.items() if name not in names}
        self.write(self._path)

    def write(self, path: Path) -> None:
        """Write all of them to *path*, a cell a line."""
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [f"  {_json(name)}: {_json(result)}" for name, result in sorted(self._by_id.items())]
        fresh = path.with_suffix(".new")
        fresh.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
        fresh.replace(path)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def as_expected(cell: Cell | TrainerSide, result: Result | None) -> bool:
    """Whether a cell was run and gave what the matrix expects."""
    return result is not None and result.outcome == cell.expect


def summary(cells: tuple[Cell | TrainerSide, ...], results: Results) -> str:
    """The last line of a run."""
    found = [(cell, results.get(cell.id)) for cell in cells]
    idle = [cell for cell, result in found if result is None or result.outcome == NOT_RUN]
    good = [cell for cell, result in found if as_expected(cell, result)]
    refused = [cell for cell in good if cell.expect == "refuse"]
    unexpected = len(found) - len(idle) - len(good)
    line = (
        f"matrix: {len(found)} cells, {len(good) - len(refused)} pass, {len(refused)} refused as expected, "
        f"{unexpected} unexpected"
    )
    return f"{line}, {len(idle)} not run" if idle else line
