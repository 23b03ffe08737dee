"""How a command ends when it fails: the error's own text, or one JSON object, and the exit code."""

from __future__ import annotations

import traceback

import msgspec
import typer

from weightwire.cli.exit_codes import ExitCode, exit_code
from weightwire.cli.screen import Screen
from weightwire.errors import ConfigurationError, UpdateFailed, WeightwireError

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""The base of everything typer says of a wrong command line; typer gives it no public name."""


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error as data.

    Attributes:
        type: the name of its class.
        message: what was found and what was expected.
        exit_code: the code the command leaves with.
        hint: what to type.
        server_text: the engine's own words.
        phase: the phase of the round or of the set-up.
        engine: the engine's URL.
        engine_states: what each engine was left with, by URL.
        notes: what else is known.
    """

    type: str
    message: str
    exit_code: int
    hint: str = ""
    server_text: str = ""
    phase: str = ""
    engine: str = ""
    engine_states: dict[str, str] = {}
    notes: tuple[str, ...] = ()


class Failed(msgspec.Struct, frozen=True):
    """What ``--json`` writes when a command fails."""

    error: Failure


def usage_error(message: str) -> ConfigurationError:
    """The error for a wrong command line."""
    return ConfigurationError(message, hint="weightwire --help")


def failure(error: BaseException) -> Failure:
    """Make data of *error*."""
    kind, code, notes = type(error).__name__, _code(error), tuple(getattr(error, "__notes__", ()))
    if not isinstance(error, WeightwireError):
        return Failure(type=kind, message=_text(error), exit_code=code, hint=_hint(error), notes=notes)
    return Failure(
        type=kind,
        message=error.message,
        exit_code=code,
        hint=error.hint,
        server_text=error.server_text,
        phase=error.where.phase,
        engine=error.where.engine,
        engine_states=dict(error.engine_states) if isinstance(error, UpdateFailed) else {},
        notes=notes,
    )


def show_failure(screen: Screen, error: BaseException) -> int:
    """Say what went wrong; return the exit code."""
    shown = failure(error)
    if screen.traceback:
        screen.say("".join(traceback.format_exception(error)).rstrip())
    if screen.json:
        screen.show_json(Failed(shown))
    if screen.json or screen.traceback:
        return shown.exit_code
    hint = f"\n  try: {shown.hint}" if shown.hint else ""
    screen.say(f"error: {error if isinstance(error, WeightwireError) else shown.message + hint}", style="red")
    for note in shown.notes:
        screen.say(f"  {note}")
    return shown.exit_code


def _code(error: BaseException) -> ExitCode:
    if isinstance(error, UsageError):
        return ExitCode.USAGE
    return ExitCode.INTERRUPTED if isinstance(error, typer.Abort) else exit_code(error)


def _text(error: BaseException) -> str:
    if isinstance(error, UsageError):
        # ``format_message`` names the parameter; ``str`` does not.
        return str(getattr(error, "format_message", error.__str__)())
    if isinstance(error, typer.Abort | KeyboardInterrupt):
        return "Interrupted."
    return f"{type(error).__name__}: {error}"


def _hint(error: BaseException) -> str:
    if isinstance(error, UsageError):
        context = getattr(error, "ctx", None)
        return f"{context.command_path if context else 'weightwire'} --help"
    return "--traceback shows where; nobody foresaw this" if _code(error) is ExitCode.BUG else ""
