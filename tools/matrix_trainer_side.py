"""The trainer's side with other releases of what we stand on: the unit suites, in environments made for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

from matrix_cells import ROOT, TrainerSide
from matrix_pytest import run
from packaging.requirements import Requirement

MEMBERS = (
    "packages/weightwire",
    "packages/weightwire-torch",
    "plugins/weightwire-vllm",
    "plugins/weightwire-vllm-legacy",
)
"""What goes beside a trainer of any kind. The adapters bring their frameworks, which have floors of their own."""

HELPERS = ("packages/weightwire-testing",)
LOGS = ROOT / ".matrix" / "logs"
ENVIRONMENTS = ROOT / ".nox"
VARIED = ("msgspec", "pluggy", "requests")
SECONDS = 1200.0


def missing(side: TrainerSide) -> str:
    """Why it can't be run here; empty where it can."""
    uv = _uv()
    if subprocess.run([uv, "python", "find", "--quiet", side.python], capture_output=True, check=False).returncode == 0:
        return ""
    fetched = subprocess.run([uv, "python", "install", "--quiet", side.python], capture_output=True, check=False)
    return "" if fetched.returncode == 0 else f"there is no Python {side.python} here, and none could be fetched"


def run_the_suites(side: TrainerSide) -> tuple[bool, str]:
    """Make the environment and run the suites in it; returns whether they passed, and what there is to say."""
    try:
        python = _environment(side)
    except subprocess.CalledProcessError as error:
        return False, f"the environment could not be made: {error.stderr.strip()}"
    held = _held(python)
    tests = failures = 0
    for member in MEMBERS:
        words = [str(python), "-m", "pytest", "-q", f"{member}/tests"]
        report = run(words, log=LOGS / f"{side.id}-{Path(member).name}.log", seconds=SECONDS)
        tests, failures = tests + report.tests, failures + report.failures
        if report.failures:
            return False, f"{Path(member).name}: {report.failures} of {report.tests} tests failed: {report.tail}"
    return True, f"{tests} tests, with {held}"


def requirements(side: TrainerSide) -> list[str]:
    """What the environment is asked for, besides our members."""
    wanted = ["pytest>=9", "pytest-timeout", "hypothesis", *_suites_needs()]
    wanted.append("torch" if side.torch == "newest" else f"torch=={side.torch}")
    if side.packages == "floor":
        wanted += [f"{name}=={floor}" for name, floor in floors().items()]
    return wanted


def _suites_needs() -> list[str]:
    """What the members' suites use besides, from groups of their own; our own distributions are there already."""
    groups = [group for member in MEMBERS for group in _declared(member).get("dependency-groups", {}).values()]
    return [text for group in groups for text in group if not text.startswith("weightwire")]


def floors() -> dict[str, str]:
    """The oldest releases that the core says it takes, of the packages that are varied."""
    declared = [Requirement(text) for text in _declared("packages/weightwire")["project"]["dependencies"]]
    return {each.name: _floor(each) for each in declared if each.name in VARIED}


def _declared(member: str) -> dict[str, Any]:
    with (ROOT / member / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


def _floor(requirement: Requirement) -> str:
    (floor,) = [each.version for each in requirement.specifier if each.operator == ">="]
    return floor


def _environment(side: TrainerSide) -> Path:
    """Make it anew, linked from uv's cache; returns its interpreter."""
    folder = ENVIRONMENTS / f"matrix-{side.id}"
    _quietly(["venv", "--clear", "--no-project", "--python", side.python, str(folder)])
    python = folder / "bin" / "python"
    members = [word for member in (*MEMBERS, *HELPERS) for word in ("--editable", str(ROOT / member))]
    _quietly(["pip", "install", "--python", str(python), *members, *requirements(side)])
    return python


def _held(python: Path) -> str:
    """What it has: the releases that matter."""
    code = "import importlib.metadata as m, sys; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]), sep=', ')"
    done = subprocess.run([str(python), "-c", code, "torch", *VARIED], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _quietly(words: list[str]) -> None:
    leading = {"VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "PYTHONPATH"}
    environment = {name: value for name, value in os.environ.items() if name not in leading}
    # Without the workspace's own settings: they hold the lock's torch.
    subprocess.run(
        [_uv(), *words, "--quiet", "--no-config"], capture_output=True, text=True, check=True, env=environment
    )


def _uv() -> str:
    return os.environ.get("UV") or shutil.which("uv") or "uv"
