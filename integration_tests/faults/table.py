"""What was found, as a table: in the terminal, and in docs/faults.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from cells import PHASES, Cell, Found, Row, differences

DOCS = Path(__file__).parent.parent.parent / "docs" / "faults.md"

HEAD = """# What every fault leaves behind

A session may meet a fault in any phase. This table says what is left of each: it is written down in
[integration_tests/faults.toml](../integration_tests/faults.toml) before it is tried, and `nox -s faults` tries every
row on reference engines that behave as the releases named. What an engine serves afterwards is judged by another
process, from the log-probabilities that the engine gives.

- **whole**: it holds exactly one version. **torn**: it holds a mix; it is paused, and the next push mends it.
  **lost**: it needs a restart.
- *serves*: A is what it held before, B what the push brought.
- *next*: what then brought other weights in. In every case a push succeeds in the end; the table says what has to come
  before it.
"""


def line(cell: Cell, found: Found, seconds: float) -> str:
    """One cell in the terminal."""
    wrong = differences(cell.row, found)
    verdict = "as expected" if not wrong else "; ".join(wrong)
    told = "\n        " + found.text.replace("\n", "\n        ") if wrong else ""
    return f"{cell.place:<13} {cell.row.phase:<9} {cell.row.fault:<55} {seconds:5.1f} s  {verdict}{told}"


def summary(played: Sequence[tuple[Cell, Found]]) -> str:
    """The last line."""
    good = [cell for cell, found in played if not differences(cell.row, found)]
    torn = sum(found.torn_resumed for _, found in played)
    over = sum(found.over > 0 for _, found in played)
    lost = sum(found.lost for _, found in played)
    expected = sum(cell.row.states.count("lost") for cell, found in played if found.lost)
    which = "all expected" if lost == expected else f"{lost - expected} not expected"
    return (
        f"faults: {len(played)} tried, {len(good)} as expected, {torn} torn resumed, {over} over deadline, "
        f"{lost} lost ({which})"
    )


def page(played: Sequence[tuple[Cell, Found]]) -> str:
    """docs/faults.md."""
    tried: dict[Row, list[str]] = {}
    for cell, _ in played:
        tried.setdefault(cell.row, []).append(cell.place)
    ordered = sorted(tried, key=lambda row: PHASES.index(row.phase))
    body = [HEAD]
    for phase, rows in groupby(ordered, key=lambda row: row.phase):
        body.append(f"\n## {phase}\n")
        body += ["| fault | raises | the engine is | serves | next | tried on |", "|---|---|---|---|---|---|"]
        body += [_row(row, tried[row]) for row in rows]
    body.append(f"\n---\n\n`{summary(played)}`")
    return "\n".join(body) + "\n"


def write(played: Sequence[tuple[Cell, Found]]) -> None:
    """Write the page."""
    DOCS.write_text(page(played), encoding="utf-8")


def _row(row: Row, places: Sequence[str]) -> str:
    cells = (
        row.fault,
        {"": "nothing", "-": ""}.get(row.raises, f"`{row.raises}`"),
        ", ".join(row.states),
        ", ".join(row.serve),
        row.next,
        ", ".join(_short(places)),
    )
    return f"| {' | '.join(cells)} |"


def _short(places: Sequence[str]) -> Iterator[str]:
    """Releases, with whose engine: ``0.32.0 stock + ours``."""
    for version, group in groupby(
        sorted(places, key=lambda p: [*map(int, p.split()[0].split("."))]), lambda p: p.split()[0]
    ):
        yield f"{version} {' + '.join(place.split()[1] for place in group)}"
