"""What several integration tests need: the members' wheels, built once, and fresh environments to install them into."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import build_wheels
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the helpers beside the tests

from fresh_environments import ROOT, constrained, fresh


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheel of every member, built once a run."""
    return build_wheels.build(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="session")
def constraints(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lock as a constraints file, with the wheels just built in the members' places."""
    path = tmp_path_factory.mktemp("constraints") / "constraints.txt"
    path.write_text(constrained(wheels), encoding="utf-8")
    return path


@pytest.fixture
def install(constraints: Path) -> Callable[..., Path]:
    """Install requirements into a fresh environment; returns the environment's bin directory.

    It lies in the checkout, where uv can link from its cache, and each one replaces the last: torch is large.
    """
    return lambda *requirements: fresh(ROOT / ".nox" / "one-wheel", requirements, constraints)
