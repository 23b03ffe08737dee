"""The trainer's side with other releases of what we stand on: the unit suites, in environments made for it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import uv_environments
from matrix_cells import ROOT, TrainerSide
from matrix_pytest import run
from uv_environments import run_uv

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
    command = uv_environments.uv()
    if (
        subprocess.run([command, "python", "find", "--quiet", side.python], capture_output=True, check=False).returncode
        == 0
    ):
        return ""
    fetched = subprocess.run([command, "python", "install", "--quiet", side.python], capture_output=True, check=False)
    return "" if fetched.returncode == 0 else f"there is no Python {side.python} here, and none could be fetched"


def run_the_suites(side: TrainerSide) -> tuple[bool, str]:
    """Make the environment and run the suites in it; returns whether they passed, and what there is to say."""
    try:
        python = _environment(side)
    except RuntimeError as error:
        return False, f"the environment could not be made: {error}"
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
    declared = [uv_environments.declared(ROOT / member) for member in MEMBERS]
    groups = [group for each in declared for group in each.get("dependency-groups", {}).values()]
    return [text for group in groups for text in group if not text.startswith("weightwire")]


def floors() -> dict[str, str]:
    """The oldest releases that the core says it takes, of the packages that are varied."""
    found = uv_environments.floors(ROOT / "packages/weightwire")
    return {name: found[name] for name in VARIED}


def _environment(side: TrainerSide) -> Path:
    """Make it anew, linked from uv's cache; returns its interpreter."""
    folder = ENVIRONMENTS / f"matrix-{side.id}"
    run_uv("venv", "--clear", "--no-project", "--python", side.python, str(folder))
    python = folder / "bin" / "python"
    members = [word for member in (*MEMBERS, *HELPERS) for word in ("--editable", str(ROOT / member))]
    run_uv("pip", "install", "--python", str(python), *members, *requirements(side))
    return python


def _held(python: Path) -> str:
    """What it has: the releases that matter."""
    code = "import importlib.metadata as m, sys; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]), sep=', ')"
    done = subprocess.run([str(python), "-c", code, "torch", *VARIED], capture_output=True, text=True, check=True)
    return done.stdout.strip()
