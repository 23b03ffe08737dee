"""What the command's exit codes mean, and which error leads to which. The table in docs/cli.md is checked by a test."""

from __future__ import annotations

from enum import IntEnum

from weightwire.errors import (
    CompatibilityError,
    ConfigurationError,
    ControlError,
    ManifestError,
    PluginError,
    StateError,
    UpdateFailed,
    WeightwireError,
)
from weightwire.states import EngineState


class ExitCode(IntEnum):
    """The exit codes; ``MEANING`` says each in a sentence."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    TORN = 3
    NO_ANSWER = 4
    PLUGIN = 5
    REFUSED = 6
    BUG = 70
    INTERRUPTED = 130


MEANING: dict[ExitCode, str] = {
    ExitCode.DONE: "Done; for `status`: every engine is whole.",
    ExitCode.FAILED: "The update failed; every engine is whole.",
    ExitCode.USAGE: "The command line, an option, the configuration or the checkpoint is wrong; nothing was changed.",
    ExitCode.TORN: "An engine is torn, lost, asleep or in the middle of another update.",
    ExitCode.NO_ANSWER: "An engine can't be reached, answered no or nonsense, or a deadline passed.",
    ExitCode.PLUGIN: "A plugin is missing or broken.",
    ExitCode.REFUSED: "Versions or tensors do not fit together; nothing was changed.",
    ExitCode.BUG: "An error that nobody foresaw; `--traceback` shows where.",
    ExitCode.INTERRUPTED: "Interrupted (Ctrl-C, SIGTERM); engines the update had reached are torn and stay paused.",
}

_BY_CLASS: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
    (ConfigurationError, ExitCode.USAGE),
    (StateError, ExitCode.TORN),
    (ControlError, ExitCode.NO_ANSWER),
    (PluginError, ExitCode.PLUGIN),
    (CompatibilityError, ExitCode.REFUSED),
    (ManifestError, ExitCode.REFUSED),
    (WeightwireError, ExitCode.FAILED),
)


def exit_code(error: BaseException) -> ExitCode:
    """The code to leave with after *error*."""
    if isinstance(error, UpdateFailed) and set(error.engine_states.values()) & {EngineState.TORN, EngineState.LOST}:
        return ExitCode.TORN
    return next((code for kind, code in _BY_CLASS if isinstance(error, kind)), ExitCode.BUG)
