"""A child process with all its descendants: they go when it is told to, and when this process dies."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from weightwire.deadlines import Deadline

POLL_SECONDS = 0.05
KILL_SECONDS = 10.0

_GUARD = "import os, signal, sys; sys.stdin.read(); os.killpg(int(sys.argv[1]), signal.SIGKILL)"
"""Waits until its standard input closes, which it does when its parent dies of whatever, then kills the group."""


class ProcessGroup:
    """A command in a process group of its own."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, output: BinaryIO) -> None:
        """Start it.

        Args:
            command: what to run.
            environment: all of its environment.
            output: where it writes to.
        """
        self._process = subprocess.Popen(  # noqa: S603 - the caller says what to run
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._guard = subprocess.Popen(  # noqa: S603 - the text above
            [sys.executable, "-S", "-E", "-c", _GUARD, str(self._process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C in the terminal must not take the guard away
        )

    @property
    def pid(self) -> int:
        """The first process, and the group."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """How the first process ended; None while it runs."""
        return self._process.poll()

    def stop(self, seconds: float) -> None:
        """Ask the first process to stop, give it *seconds*, then kill whatever is left of the group."""
        if self.returncode is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        self._kill()
        self._guard.kill()
        self._guard.communicate()

    def _kill(self) -> None:
        deadline = Deadline.after(KILL_SECONDS)
        while not deadline.expired:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return
            self._process.poll()  # reaps it, so that the group can end
            time.sleep(POLL_SECONDS)
