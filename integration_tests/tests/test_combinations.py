"""Wheels as people combine them: what is found, and one push with it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fresh_environments import run, site_packages
from weightwire_testing.model import TinyLlama, save_checkpoint
from weightwire_testing.reference import EngineSettings, ReferenceEngine

Install = Callable[..., Path]

FOUND = """
import weightwire
found = weightwire.plugins()
print("registered:", *sorted({record.distribution for record in found.records if not record.error}))
for record in found.broken:
    print("broken:", record.distribution, record.error)
"""

BROKEN = "import nowhere_to_be_found\n"
NAMESAKE = """
from weightwire import hookimpl
from weightwire.registry import DataPlaneEntry

@hookimpl
def weightwire_register(registry):
    registry.add_data_plane(DataPlaneEntry(name="gloo", backends=("nccl",), factory="weightwire_other:Plane"))
"""


@pytest.fixture
def engine(engine_pool, tmp_path: Path) -> Callable[[str], ReferenceEngine]:
    """Lends an engine that behaves as a release, with weights that differ from those in ``tmp_path``."""
    save_checkpoint(TinyLlama(seed=8), tmp_path / "held")
    save_checkpoint(TinyLlama(seed=9), tmp_path / "pushed")
    lent: list[ReferenceEngine] = []

    def lend(version: str) -> ReferenceEngine:
        lent.append(engine_pool.lend(EngineSettings(checkpoint=str(tmp_path / "held"), version=version)))
        return lent[-1]

    yield lend
    for each in lent:
        engine_pool.give_back(each)


def push(bin_folder: Path, tmp_path: Path, engine: ReferenceEngine, *, good: bool = True) -> str:
    """Push with what is installed there; returns what the command said."""
    command = [str(bin_folder / "weightwire"), "push", str(tmp_path / "pushed"), engine.url]
    before = engine.fingerprint()
    said = run([*command, "--weight-version", "nine"], good=good)
    assert (engine.fingerprint() != before) == good
    return " ".join(said.split())


def found(bin_folder: Path) -> str:
    """What the plugins there are."""
    return run([str(bin_folder / "python"), "-I", "-c", FOUND])


def add_plugin(bin_folder: Path, name: str, code: str) -> None:
    """Put somebody else's distribution beside what is installed."""
    site, module = site_packages(bin_folder), name.replace("-", "_")
    information = site / f"{module}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[weightwire]\nmain = {module}\n")
    (site / f"{module}.py").write_text(code)


def raise_the_wire_version(bin_folder: Path) -> None:
    """Make what is installed there a later release, whose wire to our own engine has changed."""
    module = site_packages(bin_folder) / "weightwire" / "engine_wire.py"
    changed = module.read_text(encoding="utf-8").replace("WIRE_VERSION = 1", "WIRE_VERSION = 1 + 1")
    assert "1 + 1" in changed
    module.unlink()  # it is linked from uv's cache
    module.write_text(changed, encoding="utf-8")


def test_one_adapter_brings_all_that_a_push_needs(install: Install, engine, tmp_path: Path) -> None:
    there = install("weightwire-fsdp2")
    assert found(there).splitlines() == [
        "registered: weightwire-fsdp2 weightwire-torch weightwire-vllm weightwire-vllm-legacy"
    ]
    push(there, tmp_path, engine("0.32.0"))
    push(there, tmp_path, engine("0.20.2"))


def test_with_one_control_plane_the_other_is_named_where_it_is_needed(install: Install, engine, tmp_path: Path) -> None:
    there = install("weightwire[cli]", "weightwire-torch", "weightwire-vllm")
    push(there, tmp_path, engine("0.32.0"))
    assert "pip install weightwire-vllm-legacy" in push(there, tmp_path, engine("0.20.2"), good=False)


def test_the_same_the_other_way_round(install: Install, engine, tmp_path: Path) -> None:
    there = install("weightwire[cli]", "weightwire-torch", "weightwire-vllm-legacy")
    push(there, tmp_path, engine("0.20.2"))
    assert "pip install weightwire-vllm" in push(there, tmp_path, engine("0.32.0"), good=False)


def test_the_core_alone_says_what_to_install(install: Install, engine, tmp_path: Path) -> None:
    there = install("weightwire[cli]")
    assert found(there).splitlines() == ["registered:"]
    assert "pip install weightwire-" in push(there, tmp_path, engine("0.32.0"), good=False)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (BROKEN, "No module named 'nowhere_to_be_found'"),
        (NAMESAKE, "Two distributions register the data plane 'gloo'"),
    ],
    ids=["broken", "namesake"],
)
def test_a_plugin_that_is_no_good_is_named_and_the_others_push(
    code: str, why: str, install: Install, engine, tmp_path: Path
) -> None:
    there = install("weightwire[cli]", "weightwire-torch", "weightwire-vllm")
    add_plugin(there, "weightwire-zealous", code)
    good, _, bad = found(there).partition("\nbroken: ")
    assert good == "registered: weightwire-torch weightwire-vllm"
    assert bad.startswith("weightwire-zealous")
    assert why in bad
    push(there, tmp_path, engine("0.32.0"))


def test_a_trainer_that_is_newer_than_the_servers_plugin_is_told_so(install: Install, engine, tmp_path: Path) -> None:
    there = install("weightwire[cli]", "weightwire-torch", "weightwire-vllm")
    raise_the_wire_version(there)
    said = push(there, tmp_path, engine("0.32.0"), good=False)
    assert "The trainer speaks wire version 2" in said
    assert "install the same release" in said


def test_a_servers_plugin_that_is_newer_than_the_trainer_says_so(install: Install, tmp_path: Path) -> None:
    there = install("weightwire-testing")
    raise_the_wire_version(there)
    save_checkpoint(TinyLlama(seed=8), tmp_path / "held")
    save_checkpoint(TinyLlama(seed=9), tmp_path / "pushed")
    settings = EngineSettings(checkpoint=str(tmp_path / "held"))
    with ReferenceEngine(settings, python=there / "python") as newer:
        here = Path(sys.executable).parent
        said = push(here, tmp_path, newer, good=False)
    assert "The trainer speaks wire version 1" in said
    assert "speaks 2" in said
