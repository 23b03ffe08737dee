"""What a server gets of ours: the code that runs here, found by a bare interpreter with its plugins."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from weightwire.errors import PluginError
from weightwire_testing import overlay

ASK = """
import json
from importlib.metadata import entry_points
found = [f"{e.name} = {e.value}" for e in entry_points(group="vllm.general_plugins")]
import weightwire_vllm_engine, weightwire_testing
print(json.dumps([sorted(found), weightwire_vllm_engine.__file__, weightwire_testing.__file__]))
"""


def test_another_interpreter_finds_our_code_and_our_plugins_there(tmp_path):
    home = overlay.ensure(tmp_path)
    reply = subprocess.run(
        [sys.executable, "-S", "-c", ASK],
        env={"PYTHONPATH": str(home)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    plugins, *files = json.loads(reply.stdout)
    assert plugins == [
        "weightwire = weightwire_vllm_engine:register",
        "weightwire_like_a_gpu = weightwire_testing.like_a_gpu:register",
        "weightwire_stock_shim = weightwire_testing.stock_shim:register",
    ]
    assert all(file.startswith(str(home)) for file in files)


def test_the_same_code_has_the_same_place_and_is_copied_once(tmp_path):
    home = overlay.ensure(tmp_path)
    made = home.stat().st_mtime_ns
    assert overlay.ensure(tmp_path) == home
    assert home.stat().st_mtime_ns == made
    assert [path.name for path in tmp_path.iterdir()] == [home.name]


def test_it_holds_no_pins_and_no_compiled_files(tmp_path):
    home = overlay.ensure(tmp_path)
    assert not list(home.rglob("__pycache__"))
    assert not (home / "weightwire_testing" / "envs").exists()


def test_changed_code_gets_a_place_of_its_own(tmp_path):
    source = tmp_path / "a.py"
    source.write_text("1")
    before = overlay._digest({"a.py": source})
    source.write_text("2")
    assert overlay._digest({"a.py": source}) != before


def test_a_distribution_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(overlay, "DISTRIBUTIONS", ("weightwire-nowhere",))
    with pytest.raises(PluginError, match="weightwire-nowhere is not installed") as caught:
        overlay.ensure(tmp_path)
    assert caught.value.hint == "pip install weightwire-nowhere"


def test_a_place_that_another_process_made_first_is_taken_as_it_is(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "theirs").touch()
    (tmp_path / "made").mkdir()
    overlay._put(tmp_path / "made", home)
    assert (home / "theirs").exists()
