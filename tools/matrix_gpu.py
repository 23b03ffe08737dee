"""Cells of the tier *gpu*: what a run of integration_tests/gpu/run_gpu.py gave, taken over from its results.jsonl."""

from __future__ import annotations

from pathlib import Path

import msgspec
from matrix_cells import Cell
from matrix_results import Result

EXPERIMENTS = {
    "stock": {"rounds-eager": "rounds-eager", "rounds-graphs": "rounds-graphs"},
    "ours": {"ours-eager": "rounds-ours-eager", "ours-graphs": "rounds-ours-graphs"},
}
"""What a cell asks for, by its engine: weights there and back, packed and not, without CUDA graphs and with them.

The names of the experiments, and what their lines call them.
"""


class Line(msgspec.Struct, frozen=True):
    """A line of results.jsonl; the figures differ."""

    version: str
    experiment: str
    what: str
    ok: bool | None
    apart: float | None = None
    seconds: float = 0.0


def taken(path: Path, cell: Cell, *, day: str, commit: str) -> Result | None:
    """What the run gave for *cell*; None where it was not part of it, or did not come to its end.

    Args:
        path: the run's results.jsonl.
        cell: a cell of the tier *gpu*.
        day: of the run, in ISO form.
        commit: of the sources that were run.
    """
    lines = [msgspec.json.decode(line, type=Line) for line in path.read_bytes().splitlines() if line]
    mine = [line for line in lines if line.version == cell.vllm]
    ended = {line.what: line for line in mine if line.experiment == "run"}
    experiments = EXPERIMENTS[cell.engine]
    ends = [ended.get(f"{name} ended") for name in experiments]
    judged = [line for line in mine if line.experiment in experiments.values() and line.ok is not None]
    if not judged or None in ends:
        return None
    good = all(line.ok for line in (*judged, *filter(None, ends)))
    wrong = "; ".join(line.what for line in judged if not line.ok)
    held = max(line.apart for line in judged if line.apart is not None and "it holds" in line.what)
    return Result(
        outcome=cell.expect if good else "fail",
        day=day,
        seconds=sum(end.seconds for end in ends if end is not None),
        figures=wrong or f"{len(judged)} checks, eager and with CUDA graphs, max abs(Δ log p) = {held:.1e} in bfloat16",
        commit=commit,
    )
