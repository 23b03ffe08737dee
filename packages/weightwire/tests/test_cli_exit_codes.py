"""Which error leads to which exit code."""

from __future__ import annotations

import pytest
from weightwire import errors
from weightwire.cli.exit_codes import MEANING, ExitCode, exit_code
from weightwire.errors import UpdateFailed


def classes(root: type[BaseException] = errors.WeightwireError):
    yield root
    for child in root.__subclasses__():
        yield from classes(child)


def failed(**states: str) -> UpdateFailed:
    error = UpdateFailed("it failed")
    error.engine_states = {f"http://{name}": state for name, state in states.items()}
    return error


def test_every_code_has_a_meaning():
    assert set(MEANING) == set(ExitCode)


@pytest.mark.parametrize("kind", set(classes()), ids=lambda kind: kind.__name__)
def test_no_error_of_ours_passes_for_a_bug_or_for_success(kind):
    assert exit_code(kind("x")) not in {ExitCode.BUG, ExitCode.DONE, ExitCode.INTERRUPTED}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ChannelError("x"), 1),
        (errors.ConfigurationError("x"), 2),
        (errors.StateError("x"), 3),
        (errors.EngineUnreachable("x"), 4),
        (errors.EngineRefused("x"), 4),
        (errors.DeadlineExceeded("x"), 4),
        (errors.PluginError("x"), 5),
        (errors.CompatibilityError("x"), 6),
        (errors.ManifestError("x"), 6),
        (ZeroDivisionError(), 70),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_the_code_says_what_kind_of_error_it_was(error, code):
    assert exit_code(error) == code


@pytest.mark.parametrize(
    ("states", "code"),
    [({"a": "whole", "b": "whole"}, 1), ({"a": "whole", "b": "torn"}, 3), ({"a": "lost"}, 3), ({}, 1)],
    ids=["whole", "one-torn", "lost", "unknown"],
)
def test_a_failed_update_is_told_by_what_it_left_behind(states, code):
    assert exit_code(failed(**states)) == code
