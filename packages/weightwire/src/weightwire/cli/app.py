"""From the words on the command line to an exit code. Only the command that was asked for is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from weightwire import discovery
from weightwire.cli.commands import Function
from weightwire.cli.exit_codes import ExitCode
from weightwire.cli.failures import show_failure, usage_error
from weightwire.cli.screen import Screen
from weightwire.errors import PluginError
from weightwire.registry import CommandEntry, load

BUILT_IN = tuple(
    CommandEntry(name=name, command=f"weightwire.cli.{name.replace('-', '_')}:{name.replace('-', '_')}", help=text)
    for name, text in {
        "push": "Load a checkpoint into live engines.",
        "status": "Ask engines what they are and how they stand.",
        "recover": "Bring torn engines to where a push can mend them.",
        "serve-args": "Say how to start a server that takes weights.",
        "plugins": "List what is installed.",
    }.items()
)

ELSEWHERE = {"demo": "weightwire-testing"}
"""Commands that other distributions bring, by the distribution to install."""


def run(words: Sequence[str]) -> int:
    """Run the command in *words*; return its exit code. Everything that can go wrong is shown here."""
    before_rest = list(words[: words.index("--")] if "--" in words else words)
    screen = Screen(json="--json" in before_rest, traceback="--traceback" in before_rest)
    try:
        with screen.logging():
            code = _main(list(words), screen)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read stdout is gone (`| head`); Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except BaseException as error:  # noqa: BLE001 - the one place where errors become text and an exit code
        return show_failure(screen, error)
    return code


def _main(words: list[str], screen: Screen) -> int:
    wanted = next((word for word in words if not word.startswith("-")), "")
    entries = {entry.name: entry for entry in _entries()}
    if wanted and wanted not in entries:
        raise _unknown(wanted, entries)
    group = typer.main.get_command(_app(entries, wanted))
    try:
        # What `group.main` does, without its own way with errors.
        with group.make_context("weightwire", words or ["--help"], obj=screen) as context:
            code = group.invoke(context)
    except typer.Exit as left:
        return left.exit_code
    return code if isinstance(code, int) else ExitCode.DONE


def _entries() -> Iterator[CommandEntry]:
    """The plugins' commands, then our own, which win over a plugin's of the same name."""
    yield from discovery.plugins().registry.commands.values()
    yield from BUILT_IN


def _app(entries: dict[str, CommandEntry], wanted: str) -> typer.Typer:
    app = typer.Typer(
        add_completion=False,
        help="Move a trainer's weights into running inference servers.",
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help comes up in half the time, and reads better in a narrow window
    )
    app.callback()(_root)
    for entry in sorted(entries.values(), key=lambda entry: entry.name):
        function = _function(entry) if entry.name == wanted else _never_called
        app.command(entry.name, help=None if entry.name == wanted else entry.help)(function)
    return app


def _function(entry: CommandEntry) -> Function:
    function = load(entry.command)
    if not callable(function):
        raise PluginError(f"{entry.command!r}, registered as the command {entry.name!r}, is no function.")
    return function


def _never_called() -> None:
    """Stand in for a command that is only listed."""


def _say_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"weightwire {version('weightwire')}\n")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say the version, and leave.")
    ] = False,
) -> None:
    del version


def _unknown(wanted: str, entries: dict[str, CommandEntry]) -> Exception:
    if wanted not in ELSEWHERE:
        return usage_error(f"There is no command {wanted!r}; there are {', '.join(sorted(entries))}.")
    distribution = ELSEWHERE[wanted]
    error = PluginError(f"The command {wanted!r} is not installed.", hint=f"pip install {distribution}")
    for record in discovery.plugins().broken:
        error.add_note(f"The plugin {record.entry_point} of {record.distribution} is broken: {record.error}")
    return error
