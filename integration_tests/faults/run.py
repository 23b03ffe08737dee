"""Play the cells of faults.toml: ``python integration_tests/faults/run.py [reference] [real] [--quick] [--only TEXT]``.

Every cell is kept in .faults/ as soon as it was played; ``--resume`` goes on where a run stopped, and ``--minutes 8``
stops one in good time. A table that was played to its end makes its part of docs/faults.md. The last line counts.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Sequence

from cells import Cell, Found, cells, differences, real_cells
from play import Play
from real_stage import RealStage
from results import Results
from stage import ReferenceStage, Stage
from table import PARTS, line, summary, write

BROKE_OFF = 3
"""The exit code of a run that stopped before its end: neither good nor bad."""


def played(stage: Stage, cell: Cell) -> Found:
    """Play one cell; one that can't be played to its end is not as expected, whatever the reason."""
    try:
        return Play(stage, cell).run()
    except Exception as error:  # noqa: BLE001 - it is this cell's failure, and the next one's stage is made anew
        stage.clear()
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__} in {where.name}, line {where.lineno} of {where.filename}: {error}"
        return Found(raises="the play broke off", states=(), serves=(), next="", text=text)


def play_all(chosen: Sequence[Cell], results: Results, *, until: float, make_stage: Callable[[], Stage]) -> bool:
    """Play what is not there as expected; whether the time was enough for all of it."""
    left = [cell for cell in chosen if not results.good(cell)]
    if not left:
        return True
    stage = make_stage()
    try:
        for number, cell in enumerate(left, start=len(chosen) - len(left) + 1):
            began = time.monotonic()
            if began > until:
                return False
            found = played(stage, cell)
            seconds = time.monotonic() - began
            results.put(cell, found, seconds=seconds)
            print(f"{number:3}/{len(chosen)} {line(cell, found, seconds)}", flush=True)
    finally:
        stage.close()
    return True


def play_table(table: str, given: argparse.Namespace, *, until: float) -> tuple[list[tuple[Cell, Found]], bool]:
    """Play one table: what was found, and whether it was played to its end, which then is in the document."""
    real, partly = table == "real", given.quick or bool(given.only)
    chosen = real_cells(only=given.only) if real else cells(quick=given.quick, only=given.only)
    results = Results(f"{table}-part" if partly else table, go_on=given.resume)
    complete = play_all(chosen, results, until=until, make_stage=RealStage if real else ReferenceStage)
    done = [(cell, found) for cell in chosen if (found := results.get(cell)) is not None]
    if complete and not partly:
        write(table, done)
    if not complete:
        print(f"The time was over after {len(done)} of {len(chosen)} cells; --resume plays the others.")
    return done, complete


def main(arguments: Sequence[str]) -> int:
    """Play.

    Returns:
        0 if all was as expected, 1 if something was not, 3 if the time was over first.
    """
    given = _parser().parse_args(arguments)
    until = time.monotonic() + 60 * given.minutes
    done, complete = [], True
    for table in given.tables or (["reference"] if given.quick else PARTS):
        found, to_the_end = play_table(table, given, until=until)
        done += found
        complete = complete and to_the_end
    print(summary(done))
    unexpected = any(differences(cell.row, found) for cell, found in done)
    return 1 if unexpected else 0 if complete else BROKE_OFF


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Play the cells of faults.toml.")
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"{' or '.join(PARTS)}; both, where none is named")
    parser.add_argument("--quick", action="store_true", help="ten cells of reference engines")
    parser.add_argument("--only", default="", help="cells in whose name this stands")
    parser.add_argument("--resume", action="store_true", help="play only what an earlier run has not found as expected")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no cell after so many")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
