"""Trainer processes, seen from the one that plays the cells."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from speech import Answer, Command
from weightwire.calls import Call
from weightwire.deadlines import Deadline

SCRIPT = Path(__file__).with_name("trainer.py")
START_SECONDS = 120.0
"""It imports torch; on a busy machine that takes its time."""
MARGIN = 25.0
"""Seconds beyond the deadline of a command after which its process counts as hung."""


class Gone(Exception):
    """The process has ended."""


class TrainerProcess:
    """One rank of a trainer."""

    def __init__(self, *arguments: int, variables: Mapping[str, str] | None = None) -> None:
        """Start it; :meth:`ready` waits.

        Args:
            arguments: its rank, how many there are, and the port they meet at; nothing for a trainer of one.
            variables: more of its environment.
        """
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("FAULTS_STDERR") else subprocess.DEVNULL,
            env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"} | dict(variables or {}),
            start_new_session=True,
        )
        self._first = Call(self._read, doing="starting a trainer")

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def ready(self) -> TrainerProcess:
        """Wait until it takes commands."""
        self._first.result(Deadline.after(START_SECONDS))
        return self

    def begin(self, command: Command) -> Call[Answer]:
        """Give a command; the next line is its answer, or says that it has halted."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(command) + b"\n")
            self._process.stdin.flush()
        return Call(self._read, doing=f"waiting for a trainer to {command.do}")

    def do(self, command: Command) -> Answer:
        """Give a command, and wait for the answer.

        Raises:
            Gone: it ended instead.
            DeadlineExceeded: it hangs.
        """
        return self.answer(self.begin(command), command)

    def answer(self, call: Call[Answer], command: Command) -> Answer:
        """Wait for the line that *call* reads."""
        return call.result(Deadline.after(command.timeout + MARGIN))

    def next_line(self) -> Call[Answer]:
        """The line after the one that said it has halted."""
        return Call(self._read, doing="waiting for a trainer to go on")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, number)
        if number is signal.SIGKILL:
            self._process.wait(10)

    def stop(self) -> None:
        """End it. Idempotent."""
        self.signal(signal.SIGKILL)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def _read(self) -> Answer:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Gone("the trainer's process has ended")
        return msgspec.json.decode(line, type=Answer)


class Trainers:
    """The trainer in use, and a spare one that starts meanwhile."""

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        """Start the first.

        Args:
            variables: more of the environment of each.
        """
        self._variables = variables
        self._spare = TrainerProcess(variables=variables)
        self._current: TrainerProcess | None = None

    def current(self) -> TrainerProcess:
        """The one in use; a fresh one where the last has ended or was given up."""
        if self._current is None or not self._current.alive:
            self.give_up()
            self.next()
        assert self._current is not None
        return self._current

    def next(self) -> TrainerProcess:
        """Take the spare one into use; the one before is the caller's to stop."""
        self._current, self._spare = self._spare, TrainerProcess(variables=self._variables)
        return self._current.ready()

    def give_up(self) -> None:
        """Do without the current one."""
        if self._current is not None:
            self._current.stop()
        self._current = None

    def close(self) -> None:
        """End all."""
        self.give_up()
        self._spare.stop()


def pair() -> list[TrainerProcess]:
    """A trainer of two ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [TrainerProcess(rank, 2, port) for rank in range(2)]
    return [process.ready() for process in ranks]
