"""What is shown while a push runs: a bar in bytes, on stderr, if that is a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from weightwire.cli.units import size
from weightwire.hookspecs import hookimpl
from weightwire.messages import Progress, StateChange
from weightwire.states import SessionState

NEXT = {"pause": "opening", "begin": "sending", "transfer": "committing", "commit": "verifying", "verify": "resuming"}
"""What a direct round does once a phase has ended."""


class SpeedColumn(ProgressColumn):
    """Bytes per second, in the units of the rest."""

    def render(self, task: Task) -> Text:
        """Nothing as long as it is not known."""
        return Text(f"{size(task.speed)}/s" if task.speed else "")


class PushProgress:
    """An observer of a session, and the bar it keeps; used as a context manager around the whole push."""

    def __init__(self, console: Console) -> None:
        """Show nothing yet."""
        self._bars = Bars(
            TextColumn("{task.description:<11}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            SpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bars.add_task("connecting", total=None)

    def __enter__(self) -> Self:
        """Show the bar, if anybody can see it."""
        if not self._bars.disable:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take it away."""
        if not self._bars.disable:  # rich before 14.2 ends a bar that was never shown with a blank line
            self._bars.stop()

    @hookimpl
    def weightwire_progress(self, progress: Progress) -> None:
        """Move the bar."""
        self._bars.update(self._task, completed=progress.sent, total=progress.total)

    @hookimpl
    def weightwire_state_changed(self, change: StateChange) -> None:
        """Say what comes next."""
        if change.phase in NEXT:
            self._bars.update(self._task, description=NEXT[change.phase])
        elif not change.phase and change.session is SessionState.UPDATING:
            self._bars.update(self._task, description="pausing")
