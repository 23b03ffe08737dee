"""Environments in which the trainers run on another torch than the lock's: made with uv on first use, in .nox."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
ADAPTERS = ("plugins/weightwire-fsdp2", "plugins/weightwire-deepspeed")
BESIDE_THEM = (
    "packages/weightwire",
    "packages/weightwire-torch",
    "packages/weightwire-testing",
    "plugins/weightwire-vllm",
    "plugins/weightwire-vllm-legacy",
)
SECONDS = 1800.0
"""The longest that making one may take; some 2.5 GB are downloaded, most of it torch."""


@cache
def python_with(torch: str) -> Path:
    """The interpreter of an environment with the adapters, what they adapt, and this torch.

    Args:
        torch: a release, or ``newest`` for whatever the package index has.
    """
    folder = ROOT / ".nox" / f"trainers-torch-{torch}"
    python = folder / "bin" / "python"
    if not python.exists():
        _uv("venv", "--no-project", "--python", sys.executable, str(folder))
    members = [word for member in (*ADAPTERS, *BESIDE_THEM) for word in ("--editable", str(ROOT / member))]
    wanted = ["--upgrade-package", "torch", "torch"] if torch == "newest" else [f"torch=={torch}"]
    _uv("pip", "install", "--python", str(python), *members, *_trainers(), *wanted)
    return python


def floor() -> str:
    """The oldest torch that the adapters take; they say it alike."""
    found = {_floor(ROOT / adapter / "pyproject.toml") for adapter in ADAPTERS}
    (release,) = found
    return release


def _floor(path: Path) -> str:
    with path.open("rb") as file:
        wanted = [Requirement(text) for text in tomllib.load(file)["project"]["dependencies"]]
    (torch,) = [each for each in wanted if each.name == "torch"]
    (least,) = [each.version for each in torch.specifier if each.operator == ">="]
    return f"{least}.0" if least.count(".") == 1 else least


def _trainers() -> list[str]:
    """The frameworks, as the root's group has them."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return list(tomllib.load(file)["dependency-groups"]["trainers"])


def _uv(*words: str) -> None:
    leading = {"VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "PYTHONPATH"}
    environment = {name: value for name, value in os.environ.items() if name not in leading}
    uv = os.environ.get("UV") or shutil.which("uv") or "uv"
    # Without the workspace's own settings: they hold the lock's torch.
    command = [uv, *words, "--quiet", "--no-config"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False)
    assert done.returncode == 0, done.stderr
