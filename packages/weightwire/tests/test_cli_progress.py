"""What is seen while a push runs."""

from __future__ import annotations

import io

from rich.console import Console
from weightwire.cli.progress import PushProgress
from weightwire.messages import Progress, StateChange
from weightwire.states import SessionState


def change(phase: str = "", session: SessionState = SessionState.UPDATING) -> StateChange:
    return StateChange(session=session, engines={}, phase=phase)


def shown(*, terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with PushProgress(console) as progress:
        progress.weightwire_state_changed(change())
        progress.weightwire_state_changed(change("pause"))
        progress.weightwire_progress(Progress(sent=512, total=2048))
        progress.weightwire_state_changed(change("begin"))
        progress._bars.refresh()
    return console.file.getvalue()


def test_a_terminal_gets_a_bar_in_bytes():
    said = shown(terminal=True)
    assert "0.5/2.0 KiB" in said
    assert "sending" in said


def test_anything_else_gets_nothing():
    assert shown(terminal=False) == ""


def test_the_bar_says_what_is_being_done():
    progress = PushProgress(Console(file=io.StringIO(), force_terminal=True))
    said = []
    changes = [change(), *map(change, ("pause", "begin", "transfer", "commit", "verify", "resume"))]
    for one in [*changes, change(session=SessionState.READY)]:
        progress.weightwire_state_changed(one)
        said.append(progress._bars.tasks[0].description)
    assert said == [
        "pausing", "opening", "sending", "committing", "verifying", "resuming", "resuming", "resuming",
    ]  # fmt: skip
