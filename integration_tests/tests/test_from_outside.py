"""A plane and an engine of somebody else's, a distribution of one file: built, installed, discovered, and used."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from safetensors.torch import load_file
from weightwire_testing.model import ModelShape, TinyLlama, save_checkpoint

OUTSIDE = Path(__file__).parents[1] / "outside"
KIT = """
from weightwire_boxes import Sockets
from weightwire_testing.conformance import DataPlaneSuite, run

class TestSockets(DataPlaneSuite):
    receiver = "weightwire_boxes:join"
    capabilities = frozenset({"packed", "unaligned", "scalars", "all_dtypes", "progress"})
    def make_plane(self):
        return Sockets()

report = run(TestSockets)
print(report)
assert report.passed
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that has the distribution installed."""
    wheels, site = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("site")
    build = ["uv", "build", "--quiet", "--wheel", "--offline", "--no-build-isolation", "--out-dir", str(wheels)]
    subprocess.run([*build, str(OUTSIDE)], check=True, timeout=60)
    (wheel,) = wheels.glob("weightwire_boxes-*.whl")
    install = ["uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, timeout=60)
    return os.environ | {"PYTHONPATH": str(site), "NO_COLOR": "1"}


@pytest.fixture(scope="module")
def boxes(installed: dict[str, str]) -> Iterator[str]:
    """The address of a running engine."""
    words = [sys.executable, "-m", "weightwire_boxes"]
    with subprocess.Popen(words, env=installed, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as engine:
        yield engine.stdout.readline().strip()
        engine.stdin.close()
        engine.wait(20)


def run(installed: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], env=installed, timeout=100, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_discovered_under_its_own_name(installed: dict[str, str]) -> None:
    said = run(installed, "-m", "weightwire.cli", "plugins", "--json")
    assert "weightwire-boxes" in said


def test_its_plane_passes_the_kit(installed: dict[str, str]) -> None:
    print(run(installed, "-c", KIT))


def test_the_command_pushes_a_checkpoint_into_its_engine(installed: dict[str, str], boxes: str, tmp_path: Path) -> None:
    save_checkpoint(TinyLlama(ModelShape(), seed=3), tmp_path / "ckpt")
    run(installed, "-m", "weightwire.cli", "push", str(tmp_path / "ckpt"), boxes, "--weight-version", "seven")
    state = requests.get(f"{boxes}/boxes", timeout=10).json()
    sent = {
        name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
        for name, tensor in load_file(tmp_path / "ckpt" / "model.safetensors").items()
    }
    assert (state["holds"], state["paused"]) == ("seven", False)
    assert state["boxes"] == sent
    told = json.loads(run(installed, "-m", "weightwire.cli", "status", boxes, "--json"))
    assert "seven" in json.dumps(told)
