"""Where a command's words go."""

from __future__ import annotations

import ctypes
import io
import json
import os

import msgspec
import pytest
from rich.console import Console
from rich.text import Text
from weightwire.cli.failures import failure, show_failure
from weightwire.cli.screen import Screen, pairs
from weightwire.errors import EngineUnreachable, ManifestError, PluginError


class Result(msgspec.Struct):
    """What a command found."""

    value: int


def test_the_values_of_pairs_stand_under_one_another():
    assert pairs([("a", "1"), ("longer", "2")]).plain == "a       1\nlonger  2"
    assert pairs([]).plain == ""


def test_a_result_goes_to_stdout_as_text_or_as_json(capsys):
    Screen().show(Result(1), Text("one"), Text("two"))
    assert capsys.readouterr() == ("one\ntwo\n", "")
    Screen(json=True).show(Result(1), Text("one"))
    assert capsys.readouterr() == ('{"value":1}\n', "")


def test_a_second_json_object_is_never_written(capsys):
    screen = Screen(json=True)
    screen.show(Result(1))
    show_failure(screen, EngineUnreachable("gone"))
    assert json.loads(capsys.readouterr().out) == {"value": 1}


def test_brackets_and_colons_in_what_an_engine_says_are_left_alone(capsys):
    Screen().say("[red]x[/red] :boom: [/unclosed]")
    assert capsys.readouterr().err == "[red]x[/red] :boom: [/unclosed]\n"


def test_a_long_line_is_not_broken_in_a_pipe(capsys):
    Screen().show(Result(1), Text("word " * 100))
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize(
    ("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)], ids=["colour", "no-color"]
)
def test_a_terminal_is_coloured_unless_no_color_is_set(monkeypatch, variables, coloured):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    screen = Screen()
    screen.err = Console(file=io.StringIO(), force_terminal=True)
    show_failure(screen, EngineUnreachable("gone"))
    assert ("\x1b[31m" in screen.err.file.getvalue()) is coloured


def test_a_failure_holds_what_the_error_knows_and_nothing_else():
    error = ManifestError("Two names are equal.", hint="rename one").at(phase="preflight", rank=0)
    error.add_note("The plugin x is broken.")
    assert msgspec.to_builtins(failure(error)) == {
        "type": "ManifestError",
        "message": "Two names are equal.",
        "exit_code": 6,
        "hint": "rename one",
        "phase": "preflight",
        "notes": ("The plugin x is broken.",),
    }


def test_notes_come_after_the_error(capsys):
    error = PluginError("Nothing is installed.")
    error.add_note("The plugin x is broken.")
    assert show_failure(Screen(), error) == 5
    assert capsys.readouterr().err == "error: Nothing is installed.\n  The plugin x is broken.\n"


def test_what_a_library_writes_to_stdout_in_the_middle_of_a_command_goes_to_stderr(capfd):
    libc = ctypes.CDLL(None)
    with Screen(json=True).to_itself():
        os.write(1, b"at once\n")
        libc.puts(b"held back by C")
    os.write(1, b"the result\n")

    said = capfd.readouterr()
    assert said.out == "the result\n"
    assert said.err == "at once\nheld back by C\n"
