"""What several integration tests need: the members' wheels, built once."""

from __future__ import annotations

from pathlib import Path

import build_wheels
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheel of every member, built once a run."""
    return build_wheels.build(tmp_path_factory.mktemp("wheels"))
