"""docs/cli.md says what the command does: its tables are made from what the command is made from."""

from __future__ import annotations

from pathlib import Path

import pytest
from weightwire.cli.app import BUILT_IN
from weightwire.cli.exit_codes import MEANING
from weightwire.cli.flags import flags_of
from weightwire.options import Options

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"
OPTIONS = [
    f"| `{flag.name}` | `WEIGHTWIRE_{flag.field.upper()}` | {flag.default and f'`{flag.default}`'} | {flag.help} |"
    for flag in flags_of(Options)
]
CODES = [f"| {code.value} | {meaning} |" for code, meaning in MEANING.items()]


@pytest.mark.parametrize(("head", "rows"), [("| code | meaning |", CODES), ("| flag | variable |", OPTIONS)])
def test_a_table_of_the_page_is_the_commands_own(head, rows):
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(head)) + 2
    table = lines[start : lines.index("", start)]
    assert table == rows, "the table should be:\n" + "\n".join(rows)


@pytest.mark.parametrize("name", [entry.name for entry in BUILT_IN])
def test_every_command_is_on_the_page(name):
    assert f"`weightwire {name}" in PAGE.read_text(encoding="utf-8")
