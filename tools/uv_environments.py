"""Environments that are made with uv for other releases than the lock's, and what our members declare of those."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

_LEADING = frozenset({"VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "PYTHONPATH"})
"""Variables that would lead uv, or an interpreter, into another environment."""


def uv() -> str:
    """The command."""
    return os.environ.get("UV") or shutil.which("uv") or "uv"


def run_uv(*words: str, seconds: float | None = None) -> None:
    """Run uv, without the workspace's own settings: they hold the lock's torch.

    Args:
        words: its arguments.
        seconds: how long it may take.

    Raises:
        RuntimeError: it failed; carries what it wrote.
        subprocess.TimeoutExpired: it took longer.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _LEADING}
    command = [uv(), *words, "--quiet", "--no-config"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())


def declared(project: Path) -> dict[str, Any]:
    """What the pyproject.toml in the folder *project* says."""
    with (project / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


def floors(project: Path) -> dict[str, str]:
    """The oldest releases that *project* says it takes, by the name of what it depends on."""
    wanted = [Requirement(text) for text in declared(project)["project"]["dependencies"]]
    return {each.name: floor for each in wanted for floor in _floor(each)}


def _floor(requirement: Requirement) -> list[str]:
    return [each.version for each in requirement.specifier if each.operator == ">="]
