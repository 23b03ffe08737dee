"""docs/compat.md, and the table in the README: made of the matrix and of the results that were recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from matrix_cells import ROOT, Cell, Matrix, TrainerSide, version_key
from matrix_results import NOT_RUN, Result, Results, as_expected, summary

PAGE = ROOT / "docs" / "compat.md"
README = ROOT / "README.md"
BEGIN = "<!-- compatibility: made by tools/matrix.py -->"
END = "<!-- end of compatibility -->"

LEGEND = "The words, the figures, and what is refused and why: [what works together](docs/compat.md)."

COLUMNS = (("stock", "tp1"), ("stock", "tp2"), ("stock", "dp2"), ("ours", "tp1"), ("ours", "tp2"), ("ours", "dp2"))
HEAD = "| vLLM | " + " | ".join(f"{engine}, {layout.upper()}" for engine, layout in COLUMNS) + " |"

INTRODUCTION = """\
# What works together

Made by `tools/matrix.py` of integration_tests/matrix.toml and the last recorded run of `nox -s matrix`; never edited.

- **real**: a real server on a CPU; weights A to B to A, each within 1e-4 of a Hugging Face forward in float32.
- **contract**: what we send and believe holds for the released wheel, and the weights go there and back in the
  reference engine that behaves as that release does.
- **refused**: before anything is changed in the server, with the reason and what to do.
- **not run**: no result was recorded yet; it needs a GPU, or a real server that is slow to start.

*Stock* is vLLM's own weight-transfer engine, *ours* that of weightwire-vllm-engine. TP1 is one worker, TP2 two that
share the layers, DP2 two replicas. Without a GPU the stock engine is fed by gloo in NCCL's place (the stock shim).
"""


def page(matrix: Matrix, results: Results) -> str:
    """All of docs/compat.md."""
    parts = [
        INTRODUCTION,
        f"`{summary(matrix.everything, results)}`\n",
        "## Releases of vLLM\n",
        releases(matrix, results),
        "## Over NCCL, on GPUs\n",
        *_gpus(matrix, results),
        "## Trainers, on real servers\n",
        *_trainers(matrix, results),
        "## What is refused, and why\n",
        *_refusals(matrix, results),
        "## The trainer's environment\n",
        *_sides(matrix, results),
        "## Every cell\n",
        *_every(matrix, results),
    ]
    return "\n".join(parts) + "\n"


def releases(matrix: Matrix, results: Results) -> str:
    """One row a release, one column an engine and layout."""
    plain = [cell for cell in matrix.cells if cell.trainer == "plain" and not cell.setup and cell.tier != "gpu"]
    rows = [HEAD, "|---" * (len(COLUMNS) + 1) + "|"]
    for version in sorted({cell.vllm for cell in plain}, key=version_key):
        entries = [_entry(_find(plain, version, column), results) for column in COLUMNS]
        rows.append(f"| {version} | {' | '.join(entries)} |")
    return "\n".join(rows) + "\n"


def put_into(readme: str, table: str) -> str:
    """The README with the table between its two markers.

    Raises:
        ValueError: a marker is missing.
    """
    head, begin, rest = readme.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the README has no {BEGIN} and {END}")
    return f"{head}{BEGIN}\n\n{table}\n{LEGEND}\n\n{END}{tail}"


def _wanted(matrix: Matrix, results: Results) -> dict[Path, str]:
    return {PAGE: page(matrix, results), README: put_into(README.read_text("utf-8"), releases(matrix, results))}


def stale(matrix: Matrix, results: Results) -> list[Path]:
    """Those of the two that are not what they should be."""
    wanted = _wanted(matrix, results)
    return [path for path, text in wanted.items() if not path.is_file() or path.read_text("utf-8") != text]


def write(matrix: Matrix, results: Results) -> list[Path]:
    """Write those that are not what they should be; returns them."""
    changed = stale(matrix, results)
    for path in changed:
        path.write_text(_wanted(matrix, results)[path], encoding="utf-8")
    return changed


def _find(cells: Sequence[Cell], version: str, column: tuple[str, str]) -> Cell | None:
    return next((cell for cell in cells if (cell.vllm, cell.engine, cell.layout) == (version, *column)), None)


def _entry(cell: Cell | None, results: Results) -> str:
    if cell is None:
        return ""
    result = results.get(cell.id)
    if result is None or result.outcome == NOT_RUN:
        return NOT_RUN
    if not as_expected(cell, result):
        return "**fails**"
    if cell.expect == "refuse":
        return "refused"
    return "real" if cell.tier == "cpu" else "contract"


def _outcome(cell: Cell | TrainerSide, result: Result | None) -> str:
    if result is None or result.outcome == NOT_RUN:
        return f"{NOT_RUN}: {result.figures}" if result else NOT_RUN
    word = {"pass": "passed", "refuse": "refused", "fail": "**failed**"}[result.outcome]
    return word if as_expected(cell, result) else f"**{word.strip('*')}**"


def _gpus(matrix: Matrix, results: Results) -> Iterator[str]:
    cells = [cell for cell in matrix.cells if cell.tier == "gpu"]
    rows = ((c.vllm, f"{c.engine}, {c.layout.upper()}", _full(c, results)) for c in cells)
    yield from _table(("vLLM", "server", "result"), rows)


def _trainers(matrix: Matrix, results: Results) -> Iterator[str]:
    cells = [cell for cell in matrix.cells if cell.tier == "cpu" and cell.trainer != "plain"]
    yield from _table(("vLLM", "trainer", "result"), ((c.vllm, c.trainer, _full(c, results)) for c in cells))


def _refusals(matrix: Matrix, results: Results) -> Iterator[str]:
    cells = [cell for cell in matrix.cells if cell.expect == "refuse"]
    rows = ((c.vllm, f"{c.engine}, {c.layout.upper()}", c.setup, c.why, _outcome(c, results.get(c.id))) for c in cells)
    yield from _table(("vLLM", "server", "set-up", "because", "result"), rows)


def _sides(matrix: Matrix, results: Results) -> Iterator[str]:
    rows = ((s.python, s.torch, s.packages, _full(s, results)) for s in matrix.trainer_sides)
    yield from _table(("Python", "torch", "msgspec, pluggy, requests", "result"), rows)


def _every(matrix: Matrix, results: Results) -> Iterator[str]:
    rows = ((each.id, *_dated(each, results.get(each.id))) for each in matrix.everything)
    yield from _table(("cell", "result", "on", "seconds", "commit"), rows)


def _dated(cell: Cell | TrainerSide, result: Result | None) -> tuple[str, str, str, str]:
    if result is None or result.outcome == NOT_RUN:
        return _outcome(cell, result), "", "", ""
    return _outcome(cell, result), result.day, f"{result.seconds:.0f}", result.commit


def _full(cell: Cell | TrainerSide, results: Results) -> str:
    result = results.get(cell.id)
    said = _outcome(cell, result)
    return said if result is None or result.outcome == NOT_RUN else f"{said} on {result.day}: {result.figures}"


def _table(head: Sequence[str], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(_one_line(text) for text in row)} |"
    yield ""


def _one_line(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
