"""A reference engine in a process of its own, started and stopped from Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Self

import msgspec
import requests
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import ConfigurationError, EngineUnreachable

from weightwire_testing.faults import Fault
from weightwire_testing.reference.reports import Called, Holding, Ready
from weightwire_testing.reference.settings import EngineSettings

START_SECONDS = 60.0
"""How long a start may take: it imports torch, which is seconds on a busy machine."""

_STOP_SECONDS = 10.0
_SWITCH_SECONDS = 60.0


class ReferenceEngine:
    """A running reference engine. A context manager; it also ends when this process does."""

    def __init__(self, settings: EngineSettings, *, python: str | os.PathLike[str] = sys.executable) -> None:
        """Start nothing yet.

        Args:
            settings: the set-up; :meth:`reset` changes it without a new process.
            python: the interpreter that runs it, of an environment with ``weightwire-testing``.
        """
        self.settings = settings
        self._python = os.fspath(python)
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._ready: Ready | None = None

    def start(self, seconds: float = START_SECONDS) -> Self:
        """Start the process, and wait until it answers. One that was stopped, or died, is found at its old address.

        Raises:
            ConfigurationError: it ended instead; the message has its words.
            DeadlineExceeded: it did not come up in time.
        """
        port = self._ready.port if self._ready is not None else 0
        self.stop()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        self._process = process = subprocess.Popen(  # noqa: S603 - an interpreter of ours
            [self._python, "-m", "weightwire_testing.reference", f"--port={port}", *_arguments(self.settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        try:
            self._await_ready(process, Deadline.after(seconds))
        except BaseException:
            self.stop()
            raise
        return self

    def _await_ready(self, process: subprocess.Popen[bytes], deadline: Deadline) -> None:
        line = Call(lambda: _first_line(process), doing="starting a reference engine").result(deadline)
        if not line:
            raise ConfigurationError(f"The reference engine did not start: {self.log().strip() or 'no word'}")
        self._ready = msgspec.json.decode(line, type=Ready)
        if self.settings.reported:
            self.reset()
        if self.settings.faults:
            self.set_faults(*self.settings.faults)

    def stop(self) -> None:
        """End the process and whatever it started, within seconds. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(_STOP_SECONDS)
        for stream in (process.stdin, process.stdout, self._log):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()

    @property
    def url(self) -> str:
        """Its base URL.

        Raises:
            EngineUnreachable: it was not started.
        """
        if self._ready is None:
            raise EngineUnreachable("The reference engine was not started.", hint="use it in a `with` statement")
        return self._ready.url

    @property
    def pid(self) -> int:
        """Its process, which leads a group of its own; 0 when it was not started or was stopped."""
        return self._process.pid if self._process is not None else 0

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def wait_dead(self, seconds: float = _STOP_SECONDS) -> int:
        """Wait for the process to end by itself; returns its exit status.

        Raises:
            subprocess.TimeoutExpired: it did not.
        """
        return self._process.wait(seconds) if self._process is not None else 0

    def log(self) -> str:
        """What it wrote to stderr so far."""
        if self._log is None or self._log.closed:
            return ""
        self._log.seek(0)
        return self._log.read().decode("utf-8", "replace")

    def reset(self, settings: EngineSettings | None = None) -> None:
        """Begin anew in the same process: the checkpoint's weights, nothing paused, no channel, no calls.

        Args:
            settings: another set-up; None keeps the one it has.
        """
        self.settings = settings or self.settings
        self._switch("POST", "/_reset", msgspec.json.encode(self.settings))

    def set_faults(self, *faults: Fault | str) -> None:
        """Put these faults in force instead of those there were; none takes all away."""
        self._switch("POST", "/_faults", msgspec.json.encode(faults))

    def calls(self) -> list[Called]:
        """The calls it was made since its start or reset, in the order in which it answered."""
        return msgspec.json.decode(self._switch("GET", "/_calls"), type=list[Called])

    def holdings(self) -> list[Holding]:
        """What every worker holds. Answers also while a transfer blocks the engine."""
        return msgspec.json.decode(self._switch("GET", "/_weights"), type=list[Holding])

    def fingerprint(self) -> str:
        """The fingerprint of the weights; ``""`` if the workers differ."""
        found = {holding.fingerprint for holding in self.holdings()}
        return found.pop() if len(found) == 1 else ""

    def _switch(self, method: str, path: str, body: bytes | None = None) -> bytes:
        with requests.Session() as session:
            session.trust_env = False  # a proxy has no business on loopback
            reply = session.request(method, self.url + path, data=body, timeout=_SWITCH_SECONDS)
        if not reply.ok:
            raise ConfigurationError(f"The reference engine refuses {path}: {reply.text}")
        return reply.content


def _arguments(settings: EngineSettings) -> Sequence[str]:
    words = [
        f"--checkpoint={settings.checkpoint}",
        f"--version={settings.version}",
        f"--backend={settings.backend.value}",
        f"--workers={settings.workers}",
        f"--data-parallel={settings.data_parallel}",
        f"--timeout={settings.timeout}",
        f"--served-name={settings.served_name}",
        f"--death-delay={settings.death_delay}",
        "--until-stdin-closes",
    ]
    words += ["--no-dev-mode"] * (not settings.dev_mode)
    words += ["--hang-on-lost-peer"] * settings.hang_on_lost_peer
    return words


def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    return process.stdout.readline() if process.stdout is not None else b""
