"""The command as a whole: dispatch, output, errors, exit codes."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from importlib.metadata import version

import pytest
import typer
from weightwire import discovery
from weightwire.cli.app import BUILT_IN, run
from weightwire.cli.commands import command
from weightwire.cli.screen import Screen
from weightwire.discovery import Catalogue, PluginRecord
from weightwire.errors import EngineRefused, UpdateFailed
from weightwire.registry import CommandEntry, Registry

BROKEN = PluginRecord(distribution="weightwire-x", version="1", entry_point="x = x", error="no module x")


@command
def act(screen: Screen, *, what: str = "nothing") -> int:
    """Do *what*."""
    if what == "refuse":
        raise EngineRefused("It said no.", hint="ask nicely", server_text="NO").at(phase="begin", engine="http://e")
    if what == "tear":
        error = UpdateFailed("It failed.")
        error.engine_states = {"http://e": "torn"}
        raise error
    if what == "bug":
        raise ZeroDivisionError("by zero")
    if what == "interrupt":
        raise KeyboardInterrupt
    if what == "log":
        logging.getLogger("weightwire.x").warning("Careful: %s.", "hot", exc_info=ValueError("too hot"))
    return 0


def plain() -> None:
    """Do nothing, as a plain typer function."""


def stop() -> None:
    """Leave in typer's way."""
    raise typer.Exit(7)


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    registry = Registry()
    for name, function in (("act", "act"), ("plain", "plain"), ("stop", "stop"), ("gone", "nowhere")):
        registry.add_command(CommandEntry(name=name, command=f"{__name__}:{function}", help=f"The command {name}."))
    catalogue = Catalogue(records=(BROKEN,), registry=registry)
    monkeypatch.setattr(discovery, "plugins", lambda: catalogue)


def test_the_help_lists_our_commands_and_the_plugins(capsys):
    assert run(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(entry.name in said and entry.help in said for entry in BUILT_IN)
    assert "The command act." in said


def test_no_word_at_all_shows_the_help(capsys):
    assert run([]) == 0
    assert "Usage: weightwire" in capsys.readouterr().out


@pytest.mark.parametrize("entry", BUILT_IN, ids=lambda entry: entry.name)
def test_every_command_explains_itself_and_takes_json(entry, capsys):
    assert run([entry.name, "--help"]) == 0
    said = capsys.readouterr().out
    assert f"Usage: weightwire {entry.name}" in said
    assert "--json" in said
    assert "--traceback" in said


def test_the_version_is_the_distributions(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"weightwire {version('weightwire')}\n"


def test_a_plugins_command_may_be_a_plain_function_or_leave_as_typer_does():
    assert run(["plain"]) == 0
    assert run(["stop"]) == 7


def test_a_plugin_can_not_replace_a_command_of_ours(capsys):
    discovery.plugins().registry.add_command(CommandEntry(name="status", command="x:y", help="Another."))
    assert run(["status", "--help"]) == 0
    assert "Another" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["frob"], "There is no command 'frob'; there are act, gone, plain, plugins, push"),
        (["status"], "weightwire status --help"),
        (["act", "--what", "x", "--frob"], "--frob"),
        (["push", "--pause", "forever", "c", "http://e"], "'keep', 'wait', 'abort'"),
        (["push", "--timeout", "soon", "c", "http://e"], "--timeout"),
        (["--frob"], "--frob"),
    ],
)
def test_a_wrong_command_line_is_told_without_a_traceback(words, said, capsys):
    assert run(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert said in err
    assert "Traceback" not in err


def test_a_command_of_a_distribution_that_is_not_installed_names_it(capsys):
    assert run(["demo"]) == 5
    said = capsys.readouterr().err
    assert "pip install weightwire-testing" in said
    assert "no module x" in said


def test_a_command_that_can_not_be_imported_is_the_plugins_fault(capsys):
    assert run(["gone"]) == 5
    assert "nowhere" in capsys.readouterr().err


def test_an_error_is_shown_in_its_own_words(capsys):
    assert run(["act", "--what", "refuse"]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: It said no. [phase begin, http://e]\n  the engine said: NO\n  try: ask nicely\n"


def test_an_error_is_one_json_object_and_nothing_else(capsys):
    assert run(["act", "--what", "refuse", "--json"]) == 4
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == {
        "error": {
            "type": "EngineRefused",
            "message": "It said no.",
            "exit_code": 4,
            "hint": "ask nicely",
            "server_text": "NO",
            "phase": "begin",
            "engine": "http://e",
        }
    }


def test_a_failed_update_says_as_json_what_each_engine_is_left_with(capsys):
    assert run(["act", "--what", "tear", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["error"]["engine_states"] == {"http://e": "torn"}


def test_a_wrong_command_line_is_json_too(capsys):
    assert run(["act", "--frob", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["exit_code"] == 2
    assert "--frob" in error["message"]


def test_the_traceback_is_shown_when_it_is_asked_for(capsys):
    assert run(["act", "--what", "refuse", "--traceback"]) == 4
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_is_told_from_an_error_that_was_foreseen(capsys):
    assert run(["act", "--what", "bug"]) == 70
    said = capsys.readouterr().err
    assert "ZeroDivisionError: by zero" in said
    assert "--traceback" in said


def test_ctrl_c_leaves_with_130(capsys):
    assert run(["act", "--what", "interrupt"]) == 130
    assert capsys.readouterr().err == "error: Interrupted.\n"


def test_what_the_libraries_warn_of_comes_out_as_a_line(capsys):
    assert run(["act", "--what", "log", "--json"]) == 0
    assert capsys.readouterr().err == "warning: Careful: hot.\n  too hot\n"


def test_json_after_two_dashes_is_a_word(capsys):
    assert run(["act", "--what", "refuse", "--", "--json"]) == 2
    assert "--json" in capsys.readouterr().err


def process(*words: str, program: str = "from weightwire.cli import main; main()", **variables: str):
    environ = {**os.environ, "WEIGHTWIRE_PLUGINS": "", **variables}
    return subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=30, check=False, env=environ
    )


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_one_sentence_says_what_to_install(missing):
    done = process(
        program="import sys, importlib.util as u; find = u.find_spec; "
        f"u.find_spec = lambda name: None if name == {missing!r} else find(name); "
        "from weightwire.cli import main; main()"
    )
    assert done.returncode == 2
    assert done.stderr == "The command needs typer and rich: pip install 'weightwire[cli]'\n"


def test_the_help_imports_nothing_heavy():
    program = (
        "import sys, weightwire.cli.app as app; app.run(['--help']); "
        "heavy = {'torch', 'transformers', 'safetensors', 'pydantic', 'numpy'} & set(sys.modules); "
        "sys.exit(f'{heavy}' if heavy else 0)"
    )
    done = process(program=program)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_nothing_but_text_goes_to_a_pipe(variables):
    done = process("status", "nowhere", **variables)
    assert done.returncode == 2
    assert done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_a_request_to_end_is_an_interrupt():
    program = (
        "import os, signal, sys; import weightwire.cli.app as app, weightwire.cli as cli; "
        "app._main = lambda words, screen: os.kill(os.getpid(), signal.SIGTERM) or signal.pause(); cli.main()"
    )
    done = process(program=program)
    assert (done.returncode, done.stderr) == (130, "error: Interrupted.\n")


def test_a_reader_that_leaves_early_is_no_error():
    program = (
        "import os, sys; from weightwire.cli import main; read, write = os.pipe(); os.close(read); "
        "os.dup2(write, 1); sys.argv = ['weightwire', '--help']; main()"
    )
    done = process(program=program)
    assert done.stderr == ""
