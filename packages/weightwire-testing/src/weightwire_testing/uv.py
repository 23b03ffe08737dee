"""Runs uv, and turns what it prints into steps that can be shown."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
from weightwire.errors import ConfigurationError

TAIL_LINES = 15
_DOWNLOADING = re.compile(r"^\s*Downloading (\S+) \(([\d.]+)(KiB|MiB|GiB)\)")
_DOWNLOADED = re.compile(r"^\s*Downloaded (\S+)")
_MEBIBYTES = {"KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0}
_LEADING_ELSEWHERE = (
    "VIRTUAL_ENV",
    "UV_PROJECT",
    "UV_PROJECT_ENVIRONMENT",
    "UV_WORKING_DIR",
    "PYTHONPATH",
    "PYTHONHOME",
)
"""Variables that ``uv run`` or an active environment set, and that would lead uv to another project."""


class Step(msgspec.Struct, frozen=True):
    """Something that was done, or is being done.

    Attributes:
        text: what, for a reader.
        fraction: how much of the downloads that were announced is done, 0.0 to 1.0; None where nothing is downloaded.
    """

    text: str
    fraction: float | None = None


def find() -> str:
    """The uv to run: the one that runs us, if one does, or the one on the path.

    Raises:
        ConfigurationError: there is none.
    """
    found = os.environ.get("UV") or shutil.which("uv")
    if not found:
        raise ConfigurationError(
            "A real vLLM gets an environment of its own, and that takes uv, which is not on the path.",
            hint="pip install uv",
        )
    return found


def sync(project: Path, python: str, *, seconds: float, tell: Callable[[Step], None]) -> None:
    """Make the environment of the project at *project* exactly as its lock says.

    The lock is taken as it is (``--frozen``), not compared with the indexes that this machine is set up for.

    Args:
        project: a directory with ``pyproject.toml`` and ``uv.lock``.
        python: an interpreter, or a range of versions.
        seconds: the longest it may take.
        tell: told of each step.

    Raises:
        ConfigurationError: uv failed or ran out of time; carries the end of what it said.
    """
    command = [find(), "sync", "--frozen", "--no-progress", "--python", python, "--project", str(project)]
    environment = {name: value for name, value in os.environ.items() if name not in _LEADING_ELSEWHERE}
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    with subprocess.Popen(  # noqa: S603 - uv, with paths of our own
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, text=True
    ) as process:
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        try:
            for step in steps(_remembered(process.stderr or (), tail)):
                tell(step)
        finally:
            timer.cancel()
            process.kill()  # does nothing to one that has ended
    if process.returncode != 0:
        raise ConfigurationError(
            f"`{' '.join(command)}` failed with code {process.returncode}. The end of what it said:\n" + "".join(tail),
            hint="mend what it names and try again: what was downloaded is kept",
        )


def steps(lines: Iterable[str]) -> Iterable[Step]:
    """What uv prints, as steps; the fraction counts what it announced so far."""
    announced: dict[str, float] = {}
    fetched = 0.0
    for line in lines:
        if found := _DOWNLOADING.match(line):
            announced[found[1]] = float(found[2]) * _MEBIBYTES[found[3]]
        elif found := _DOWNLOADED.match(line):
            fetched += announced.get(found[1], 0.0)
        elif line.startswith(" + "):
            continue
        total = sum(announced.values())
        if line.strip():
            yield Step(line.strip(), min(1.0, fetched / total) if total else None)


def _remembered(lines: Iterable[str], tail: deque[str]) -> Iterable[str]:
    for line in lines:
        tail.append(line)
        yield line
