"""Run the compatibility matrix, and make the documents of it.

Usage::

    python tools/matrix.py list [WORD…]              the cells, and what each gave last
    python tools/matrix.py run [--fresh] [--record] [WORD…]
                                                     run the cells that have not given what they should
    python tools/matrix.py record                    record the results of the last run, and make the documents
    python tools/matrix.py documents [--check]       make docs/compat.md and the README's table
    python tools/matrix.py gpu RESULTS DAY COMMIT    take over the results.jsonl of integration_tests/gpu/run_gpu.py

A WORD is a part of a cell's name, such as ``0.20.2``, ``contract`` or ``ours-tp2``; a cell has to hold all of them.
``run`` goes on where the last run stopped; the results of a run are in .matrix/, with a log of every server.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import matrix_documents
import matrix_gpu
import matrix_real
import matrix_trainer_side
from matrix_cells import ROOT, Cell, Matrix, TrainerSide, load
from matrix_results import RECORDED, WORKING, Result, Results, as_expected, summary

WHAT = ("list", "run", "record", "documents", "gpu")

Work = Callable[[], tuple[bool, str]]


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return its exit code: 1 where something is not as the matrix expects."""
    parser = argparse.ArgumentParser(description="The compatibility matrix.")
    parser.add_argument(
        "words", nargs="+", metavar="WORD", help=f"one of {', '.join(WHAT)}; then parts of cells' names"
    )
    parser.add_argument("--fresh", action="store_true", help="run: also the cells that have given what they should")
    parser.add_argument("--record", action="store_true", help="run: record the results as well, and make the documents")
    parser.add_argument("--check", action="store_true", help="documents: write nothing, fail if they are stale")
    given = parser.parse_intermixed_args(arguments)
    what, *words = given.words
    if what not in WHAT:
        parser.error(f"{what!r} is none of {', '.join(WHAT)}")
    matrix, code = load(), 0
    if what == "list":
        return show(matrix, Results(WORKING), words)
    if what == "gpu":
        path, day, revision = words
        take_over(matrix, Results(RECORDED), path, day=day, commit=revision)
    if what == "run":
        code = run(matrix, Results(WORKING), words, fresh=given.fresh)
    if what == "record" or given.record:
        record(matrix, Results(WORKING), Results(RECORDED))
    if what != "run" or given.record:
        code = documents(matrix, check=given.check) or code
    return code


def chosen(matrix: Matrix, words: Sequence[str]) -> tuple[Cell | TrainerSide, ...]:
    """The cells whose names hold all *words*."""
    return tuple(each for each in matrix.everything if all(word in each.id for word in words))


def show(matrix: Matrix, results: Results, words: Sequence[str]) -> int:
    """Print the cells."""
    cells = chosen(matrix, words)
    for cell in cells:
        result = results.get(cell.id)
        print(f"{cell.id:<60} expect {cell.expect:<7} {result.outcome if result else 'not run'}")
    print(summary(cells, results))
    return 0


def run(matrix: Matrix, results: Results, words: Sequence[str], *, fresh: bool) -> int:
    """Run what has not given what it should, and say how it went."""
    cells = chosen(matrix, words)
    if fresh:
        results.forget({cell.id for cell in cells})
    with workers() as work_of:
        for number, cell in enumerate(cells, start=1):
            if as_expected(cell, results.get(cell.id)):
                continue
            result = attempt(cell, work_of(cell))
            results.put(cell.id, result)
            mark = "" if as_expected(cell, result) or result.outcome == "not run" else "  UNEXPECTED"
            print(f"[{number}/{len(cells)}] {cell.id}: {result.outcome}, {result.seconds:.1f} s{mark}", flush=True)
            print(f"    {result.figures}", flush=True)
    print(summary(cells, results))
    unexpected = [c for c in cells if (r := results.get(c.id)) and r.outcome != "not run" and not as_expected(c, r)]
    return 1 if unexpected else 0


@contextmanager
def workers() -> Iterator[Callable[[Cell | TrainerSide], Work | str]]:
    """What is to be done for a cell, or why nothing can be. Contract cells share their reference engines."""
    from matrix_contract import Bench, Failed  # noqa: PLC0415 - torch: not needed to list cells or make documents

    bench = Bench()

    def on_the_bench(cell: Cell) -> tuple[bool, str]:
        try:
            return True, bench.run(cell)
        except Failed as failed:
            return False, str(failed)

    def work_of(cell: Cell | TrainerSide) -> Work | str:
        if isinstance(cell, TrainerSide):
            return matrix_trainer_side.missing(cell) or (lambda: matrix_trainer_side.run_the_suites(cell))
        if cell.tier == "contract":
            return lambda: on_the_bench(cell)
        if cell.tier == "gpu":
            return "it takes GPUs: integration_tests/gpu"
        return matrix_real.missing(cell) or (lambda: matrix_real.try_on_a_server(cell))

    try:
        yield work_of
    finally:
        bench.close()


def attempt(cell: Cell | TrainerSide, work: Work | str) -> Result:
    """Do the work; whatever it raises is a failure of the cell, not of the run."""
    began = time.monotonic()
    if isinstance(work, str):
        good, figures = None, work
    else:
        try:
            good, figures = work()
        except Exception as error:  # noqa: BLE001 - the other cells are still to be run
            good, figures = False, f"{type(error).__name__}: {error}"
    outcome = "not run" if good is None else cell.expect if good else "fail"
    return Result(
        outcome=outcome,
        day=datetime.now(UTC).date().isoformat(),
        seconds=round(time.monotonic() - began, 1),
        figures=" ".join(figures.split()),
        commit=commit(),
    )


def commit() -> str:
    """What is run: the commit, and whether anything was changed since."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def record(matrix: Matrix, working: Results, recorded: Results) -> None:
    """Keep the results of the last run in the repository; what it did not run keeps what it gave before."""
    names = {cell.id for cell in matrix.everything}
    recorded.take_over(working, names)


def take_over(matrix: Matrix, recorded: Results, path: str, *, day: str, commit: str) -> None:
    """Record what a run on GPUs gave, of the cells that were part of it."""
    for cell in matrix.cells:
        result = matrix_gpu.taken(Path(path), cell, day=day, commit=commit) if cell.tier == "gpu" else None
        if result is not None:
            recorded.put(cell.id, result)
            print(f"{cell.id}: {result.outcome}, {result.figures}")


def documents(matrix: Matrix, *, check: bool) -> int:
    """Make the documents, or say whether they would change."""
    results = Results(RECORDED)
    if check:
        stale = matrix_documents.stale(matrix, results)
        print("\n".join(f"{path.name}: not what tools/matrix.py makes" for path in stale) or "up to date")
        return 1 if stale else 0
    for path in matrix_documents.write(matrix, results):
        print(f"{path.relative_to(ROOT)} written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
