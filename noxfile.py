"""What can be run, and how: ``uv run --frozen nox --list``.

Every environment comes from uv.lock; nothing is resolved here. ``tests`` is what has to pass before anything is
merged; the other sessions are its parts, and what takes longer.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "none"  # uv makes the environments, from the lock
nox.options.sessions = ["tests"]

ROOT = Path(__file__).parent
MEMBERS = {path.parent.name: path.parent.relative_to(ROOT) for path in sorted(ROOT.glob("p*/*/pyproject.toml"))}


@nox.session
def tests(session: nox.Session) -> None:
    """Everything that must pass: lint, types, layers, budget, each member's suite, the cheap integration tests."""
    lint(session)
    types(session)
    _unit(session, MEMBERS, [])
    _pytest(session, "python", ["integration_tests/tests"])


@nox.session
def lint(session: nox.Session) -> None:
    """Style, format, the layers of the architecture, the size budget."""
    session.run("ruff", "check", "--quiet")
    session.run("ruff", "format", "--check", "--quiet")
    session.run("lint-imports", "--no-cache", "--no-logo")
    session.run("python", "tools/check_budget.py")


@nox.session
def locks(session: nox.Session) -> None:
    """Whether every lock says what the pyproject.toml beside it asks for; against PyPI, so not part of ``tests``."""
    for lock in [ROOT / "uv.lock", *sorted(ROOT.glob("packages/*/src/**/envs/*/uv.lock"))]:
        session.run("uv", "lock", "--check", "--quiet", "--project", str(lock.parent))


@nox.session
def types(session: nox.Session) -> None:
    """Strict types in every source file, the tools and this file."""
    sources = [str(folder / "src") for folder in MEMBERS.values()]
    session.run("mypy", "noxfile.py", "tools", *sources)


@nox.session
def unit(session: nox.Session) -> None:
    """Each member's suite: ``nox -s unit -- weightwire-torch -k packs``."""
    chosen = [argument for argument in session.posargs if argument in MEMBERS]
    _unit(session, chosen or list(MEMBERS), [argument for argument in session.posargs if argument not in MEMBERS])


@nox.session
def real(session: nox.Session) -> None:
    """One real vLLM server: ``nox -s real -- vllm==0.22.1``; ``--quick`` for one start; options of pytest follow."""
    product, _, release = (session.posargs or [""])[0].partition("==")
    if product != "vllm" or not release:
        session.error("say which release, first: nox -s real -- vllm==0.22.1")
    python = _environment(session, "real", ["--all-extras", "--group", "real"])
    _pytest(session, python, ["integration_tests/real", "--vllm", release, *session.posargs[1:]])


@nox.session
def trainers(session: nox.Session) -> None:
    """Real trainers, one to four ranks: ``nox -s trainers -- -k zero3``; real servers among them, made on first use."""
    python = _environment(session, "trainers", ["--all-extras", "--group", "trainers"])
    _pytest(session, python, ["integration_tests/trainers", *session.posargs])


@nox.session
def faults(session: nox.Session) -> None:
    """What every fault leaves behind; ``-- --quick`` for ten, ``-- reference`` or ``-- real``, ``--resume``."""
    session.run("python", "integration_tests/faults/run.py", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """A thousand rounds with faults at random, and 200 on a real server; or as given: ``-- --rounds 100``."""
    for arguments in [session.posargs] if session.posargs else [[], ["--real", "0.32.0 stock"]]:
        session.run("python", "integration_tests/faults/soak.py", *arguments)


@nox.session
def matrix(session: nox.Session) -> None:
    """What works with what: ``nox -s matrix -- contract`` for a part, ``--fresh`` to begin anew; an hour for all."""
    python = _environment(session, "matrix", ["--all-extras", "--group", "real", "--group", "trainers"])
    session.run(python, "tools/matrix.py", "run", "--record", *session.posargs, external=True)


@nox.session
def wheels(session: nox.Session) -> None:
    """Build every member's wheel into dist/."""
    session.run("python", "tools/build_wheels.py", "dist")


@nox.session
def bench(session: nox.Session) -> None:
    """The benchmark scripts, tools/bench_*.py, or those that are named: ``nox -s bench -- startup``."""
    chosen = session.posargs or [path.stem.removeprefix("bench_") for path in sorted(ROOT.glob("tools/bench_*.py"))]
    for name in chosen:
        session.run("python", f"tools/bench_{name}.py")


def _unit(session: nox.Session, members: Sequence[str] | dict[str, Path], options: Sequence[str]) -> None:
    """Run suites, each where only the member and what it declares is installed: an undeclared import fails."""
    for name in members:
        folder = MEMBERS[name]
        if not (ROOT / folder / "tests").is_dir():
            session.warn(f"{name} has no tests")
            continue
        groups = ["test", *_own_groups(folder)]
        selection = ["--package", name, "--all-extras", "--no-default-groups"]
        selection += [argument for group in groups for argument in ("--group", group)]
        python = _environment(session, f"unit-{name}", selection)
        _pytest(session, python, [str(folder / "tests"), *options])


def _own_groups(folder: Path) -> list[str]:
    """The groups of a member: what its suite needs besides the root's group ``test``."""
    with (ROOT / folder / "pyproject.toml").open("rb") as file:
        return list(tomllib.load(file).get("dependency-groups", {}))


def _environment(session: nox.Session, name: str, selection: Sequence[str]) -> str:
    """Bring the environment .nox/*name* to exactly what the lock says of *selection*; return its Python."""
    folder = ROOT / ".nox" / name
    env = {"UV_PROJECT_ENVIRONMENT": str(folder), "VIRTUAL_ENV": None}
    session.run("uv", "sync", "--frozen", "--quiet", *selection, env=env)
    return str(folder / "bin" / "python")


def _pytest(session: nox.Session, python: str, arguments: Sequence[str]) -> None:
    session.run(python, "-m", "pytest", "-q", *arguments, external=True)
