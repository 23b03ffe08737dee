"""Environments in which the trainers run on another torch than the lock's: made with uv on first use, in .nox."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import uv_environments

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
        uv_environments.run_uv("venv", "--no-project", "--python", sys.executable, str(folder))
    members = [word for member in (*ADAPTERS, *BESIDE_THEM) for word in ("--editable", str(ROOT / member))]
    wanted = ["--upgrade-package", "torch", "torch"] if torch == "newest" else [f"torch=={torch}"]
    words = ["pip", "install", "--python", str(python), *members, *_trainers(), *wanted]
    uv_environments.run_uv(*words, seconds=SECONDS)
    return python


def floor() -> str:
    """The oldest torch that the adapters take; they say it alike."""
    found = {_floor(ROOT / adapter) for adapter in ADAPTERS}
    (release,) = found
    return release


def _floor(project: Path) -> str:
    least = uv_environments.floors(project)["torch"]
    return f"{least}.0" if least.count(".") == 1 else least


def _trainers() -> list[str]:
    """The frameworks, as the root's group has them."""
    return list(uv_environments.declared(ROOT)["dependency-groups"]["trainers"])
