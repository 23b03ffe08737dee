"""Environments that hold what a user would install, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 110.0

BYTECODE = ROOT / ".nox" / "one-wheel-bytecode"
"""An environment replaces the last in the same place, with the same files of torch: they are compiled once."""


def run(command: Sequence[str], *, cwd: Path | None = None, good: bool = True) -> str:
    """Run it, bounded; return what it printed, after seeing that it ended as it should."""
    variables = os.environ | {"PYTHONPYCACHEPREFIX": str(BYTECODE)}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode == 0) == good, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout + ("" if good else done.stderr)


def constrained(wheels: Sequence[Path]) -> str:
    """The lock as constraints, with *wheels* in the members' places."""
    command = ["uv", "export", "--quiet", "--frozen", "--all-packages", "--all-extras", "--no-dev", "--no-hashes"]
    locked = run([*command, "--no-emit-workspace", "--no-annotate", "--no-header"], cwd=ROOT)
    ours = [f"{path.name.split('-')[0].replace('_', '-')} @ {path.as_uri()}" for path in wheels]
    return "\n".join([locked, *ours])


def fresh(folder: Path, requirements: Sequence[str], constraints: Path) -> Path:
    """Make the environment *folder* anew, with these requirements; returns its bin directory."""
    run(["uv", "venv", "--quiet", "--clear", "--no-project", "--python", sys.executable, str(folder)])
    command = ["uv", "pip", "install", "--quiet", "--python", str(folder), "--constraints", str(constraints)]
    run([*command, *requirements])
    return folder / "bin"


def site_packages(bin_folder: Path) -> Path:
    """Where an environment's packages are."""
    (found,) = bin_folder.parent.glob("lib/python*/site-packages")
    return found
