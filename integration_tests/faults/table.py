"""What was found, as a table: in the terminal, and in docs/faults.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from cells import PHASES, Cell, Found, Row, differences

DOCS = Path(__file__).parent.parent.parent / "docs" / "faults.md"

Played = Sequence[tuple[Cell, Found]]

HEAD = """# What every fault leaves behind

A session may meet a fault in any phase. What is left of each is written down in
[integration_tests/faults.toml](../integration_tests/faults.toml) before it is tried; these are the tables of the last
run. What an engine serves afterwards is judged by a process that has no part in the session, from the log-probabilities
that the engine gives; and what the session says of the engine has to be what a new process makes of it.

- **whole**: it holds exactly one version. **torn**: it holds a mix; it is paused, and the next push mends it.
  **lost**: it needs a restart.
- *serves*: A is what it held before, B what the push brought.
- *next*: what then brought other weights in. In every case a push succeeds in the end; the table says what has to come
  before it.
"""

PARTS = {
    "reference": (
        "Reference engines",
        "Engines that behave as the releases named, and fail on demand: `uv run --frozen nox -s faults -- reference`.",
    ),
    "real": (
        "Real servers",
        "vLLM on a CPU, and a proxy that makes the faults of the calls: `uv run --frozen nox -s faults -- real`.",
    ),
}
"""The page's parts, each made by a run of its own: title, and what was run."""


def line(cell: Cell, found: Found, seconds: float) -> str:
    """One cell in the terminal."""
    wrong = differences(cell.row, found)
    verdict = "as expected" if not wrong else "; ".join(wrong)
    told = "\n        " + found.text.replace("\n", "\n        ") if wrong else ""
    return f"{cell.place:<13} {cell.row.phase:<9} {cell.row.fault:<55} {seconds:5.1f} s  {verdict}{told}"


def summary(played: Played) -> str:
    """The last line."""
    good = [cell for cell, found in played if not differences(cell.row, found)]
    torn = sum(found.torn_resumed for _, found in played)
    over = sum(found.over > 0 for _, found in played)
    lost = sum(found.lost for _, found in played)
    expected = sum(min(found.lost, cell.row.states.count("lost")) for cell, found in played)
    which = "all expected" if lost == expected else f"{lost - expected} not expected"
    return (
        f"faults: {len(played)} tried, {len(good)} as expected, {torn} torn resumed, {over} over deadline, "
        f"{lost} lost ({which})"
    )


def write(part: str, played: Played) -> None:
    """Make one part of docs/faults.md anew, and leave the other as it is."""
    text = DOCS.read_text(encoding="utf-8") if DOCS.is_file() else ""
    parts = {name: tables(name, played) if name == part else between(text, name) for name in PARTS}
    DOCS.write_text("\n".join([HEAD, *filter(None, parts.values())]), encoding="utf-8")


def tables(part: str, played: Played) -> str:
    """One part of the page, between its marks."""
    title, told = PARTS[part]
    rows: dict[Row, list[tuple[Cell, Found]]] = {}
    for cell, found in played:
        rows.setdefault(cell.row, []).append((cell, found))
    body = [_begin(part), f"## {title}\n", told]
    for phase, group in groupby(sorted(rows, key=lambda row: PHASES.index(row.phase)), key=lambda row: row.phase):
        body += [f"\n### {phase}\n", "| fault | raises | the engine is | serves | next | tried on |"]
        body += ["|---|---|---|---|---|---|", *(_row(row, rows[row]) for row in group)]
    return "\n".join([*body, f"\n`{summary(played)}`\n", _end(part), ""])


def _row(row: Row, played: Played) -> str:
    cells = (
        row.fault,
        {"": "nothing", "-": ""}.get(row.raises, f"`{row.raises}`"),
        ", ".join(row.states),
        ", ".join(row.serve),
        row.next,
        ", ".join([*_short([cell.place for cell, _ in played]), *_deviations(played)]),
    )
    return f"| {' | '.join(cells)} |"


def _deviations(played: Played) -> Iterator[str]:
    """What was not so, and where."""
    for cell, found in played:
        wrong = differences(cell.row, found)
        if wrong:
            yield f"**but {cell.place}: {'; '.join(wrong)}**"


def _short(places: Sequence[str]) -> Iterator[str]:
    """Releases, with whose engine: ``0.32.0 stock + ours``."""
    in_order = sorted(places, key=lambda place: [*map(int, place.split()[0].split("."))])
    for version, group in groupby(in_order, lambda place: place.split()[0]):
        yield f"{version} {' + '.join(place.partition(' ')[2] for place in group)}"


def between(text: str, part: str) -> str:
    """What the page has of a part already."""
    begin, end = _begin(part), _end(part)
    return text[text.index(begin) : text.index(end) + len(end)] + "\n" if begin in text and end in text else ""


def _begin(part: str) -> str:
    return f"<!-- {part}: made by integration_tests/faults/run.py -->\n"


def _end(part: str) -> str:
    return f"<!-- end of {part} -->"
