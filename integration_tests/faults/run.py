"""Play every cell of faults.toml: ``python integration_tests/faults/run.py [--quick] [--only TEXT]``.

Ends with one line that counts; writes docs/faults.md when all cells were played.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from cells import Cell, Found, cells, differences
from play import Play
from stage import Stage
from table import line, summary, write
from trainers import Gone
from weightwire.errors import WeightwireError


def played(stage: Stage, cell: Cell) -> Found:
    """Play one cell; one that can't be played to its end is not as expected."""
    try:
        return Play(stage, cell).run()
    except (AssertionError, Gone, LookupError, OSError, WeightwireError) as error:
        stage.trainers.give_up()
        return Found(raises=type(error).__name__, states=(), serves=(), next="", text=str(error))


def main(arguments: Sequence[str]) -> int:
    """Play.

    Returns:
        1 if anything was not as expected.
    """
    parser = argparse.ArgumentParser(description="Play the cells of faults.toml.")
    parser.add_argument("--quick", action="store_true", help="ten cells")
    parser.add_argument("--only", default="", help="cells in whose name this stands")
    given = parser.parse_args(arguments)
    chosen = list(cells(quick=given.quick, only=given.only))
    stage, done = Stage(), []
    try:
        for cell in chosen:
            began = time.monotonic()
            found = played(stage, cell)
            done.append((cell, found))
            print(line(cell, found, time.monotonic() - began), flush=True)
            if differences(cell.row, found):
                print("    " + found.text.replace("\n", "\n    "), flush=True)
    finally:
        stage.close()
    if not given.quick and not given.only:
        write(done)
    print(summary(done))
    return 1 if any(differences(cell.row, found) for cell, found in done) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
