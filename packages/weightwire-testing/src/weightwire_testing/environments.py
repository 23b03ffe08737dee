"""Real vLLM servers on a CPU: an environment for each release, made on first use from pins that ship in this wheel.

vLLM's CPU build needs overrides, and those hold for a whole uv project; so each release has a small project of its own
under ``envs/``, with its lock. An environment is some 5 GB, kept under ``~/.cache/weightwire/envs`` (or
``WEIGHTWIRE_ENVS``), named after its lock, and never changed once it is complete. Weightwire's own server-side parts
are not installed into it: they lie beside it (:mod:`weightwire_testing.overlay`).
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from weightwire.errors import CompatibilityError, ConfigurationError

from weightwire_testing import overlay, uv
from weightwire_testing.file_lock import holding
from weightwire_testing.uv import Step

PINS = Path(__file__).with_name("envs")
FREE_BYTES = 6 * 2**30
"""What making one may take: 4.6 GB for the environment, which shares its files with uv's cache, and room to unpack."""

MAKING_SECONDS = 3600.0
"""The longest that making one may take; some 2.5 GB are downloaded on first use."""

Tell = Callable[[Step], None]


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Where a release of vLLM can be run.

    Attributes:
        version: the release.
        python: its interpreter.
        overlay: a directory with Weightwire's server-side distributions; the first, and only, entry of ``PYTHONPATH``.
    """

    version: str
    python: Path
    overlay: Path


def known() -> tuple[str, ...]:
    """The releases that can be made, oldest first."""
    versions = [path.name.removeprefix("vllm-") for path in PINS.glob("vllm-*")]
    return tuple(sorted(versions, key=lambda version: [int(part) for part in version.split(".")]))


def root() -> Path:
    """Where environments are kept: ``WEIGHTWIRE_ENVS``, or ``weightwire/envs`` in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("WEIGHTWIRE_ENVS") or cache / "weightwire" / "envs").expanduser().resolve()


def ensure(version: str, *, on_progress: Tell | None = None) -> Environment:
    """The environment of vLLM *version*; made, or repaired, if it is not there in one piece.

    Args:
        version: one of :func:`known`.
        on_progress: told of each step while one is being made.

    Raises:
        ConfigurationError: no such version; no uv; too little room; uv failed, with its own words.
        CompatibilityError: vLLM's CPU build is not for this machine.
    """
    tell = on_progress or _nobody
    pins = _pins(version)
    home = root() / f"vllm-{version}-{_digest(pins)}"
    python = home / ".venv" / "bin" / "python"
    if not _complete(home, python):
        _check_machine()
        root().mkdir(parents=True, exist_ok=True)
        waiting = Step(f"another process is making the environment of vLLM {version}; waiting for it")
        with holding(home.with_name(f"{home.name}.lock"), MAKING_SECONDS, on_wait=lambda: tell(waiting)):
            if not _complete(home, python):
                _make(home, pins, tell)
    return Environment(version=version, python=python, overlay=overlay.ensure(root() / "server-side"))


def _make(home: Path, pins: Path, tell: Tell) -> None:
    """Make it from nothing: what an interrupted try left is dropped, and its downloads are in uv's cache."""
    shutil.rmtree(home, ignore_errors=True)
    _check_room(home.parent)
    home.mkdir(parents=True)
    for name in ("pyproject.toml", "uv.lock"):
        shutil.copyfile(pins / name, home / name)
    tell(Step(f"making {home}: the first time, some 2.5 GB are downloaded"))
    uv.sync(home, _interpreter(), seconds=MAKING_SECONDS, tell=tell)
    _mark(home)


def _mark(home: Path) -> None:
    (home / "complete.new").touch()
    (home / "complete.new").rename(home / "complete")


def _complete(home: Path, python: Path) -> bool:
    return (home / "complete").exists() and os.access(python, os.X_OK)


def _pins(version: str) -> Path:
    if version not in known():
        raise ConfigurationError(
            f"There are no pins for vLLM {version!r}; there are for {', '.join(known())}.",
            hint="choose one of those, or start the server yourself and give its URL",
        )
    return PINS / f"vllm-{version}"


def _digest(pins: Path) -> str:
    return hashlib.sha256((pins / "uv.lock").read_bytes()).hexdigest()[:12]


def _check_machine() -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise CompatibilityError(
            f"vLLM's CPU build is for Linux on x86_64; this is {sys.platform} on {platform.machine()}.",
            hint="use the embedded engine, which runs anywhere: `weightwire demo` without --engine",
        )


def _check_room(where: Path) -> None:
    free = shutil.disk_usage(where).free
    if free < FREE_BYTES:
        raise ConfigurationError(
            f"{where} has {free / 2**30:.1f} GiB free; an environment needs {FREE_BYTES / 2**30:.0f} GiB.",
            hint="make room, or set WEIGHTWIRE_ENVS to a directory on a larger disk",
        )


def _interpreter() -> str:
    """This interpreter where the pins know it, so that none has to be downloaded; otherwise uv chooses."""
    return sys.executable if (3, 11) <= sys.version_info[:2] < (3, 15) else ">=3.11,<3.15"


def _nobody(step: Step) -> None:
    del step
