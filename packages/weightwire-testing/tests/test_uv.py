"""uv is found, run and read. The uv here is a stand-in: a script that says what the real one says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from weightwire.errors import ConfigurationError
from weightwire_testing import uv
from weightwire_testing.uv import Step


def stand_in(directory: Path, body: str) -> str:
    """An executable that runs *body* in Python, with its arguments in ``sys.argv``."""
    script = directory / "uv"
    script.write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}\n")
    script.chmod(0o755)
    return str(script)


def test_the_uv_that_runs_us_is_preferred_to_the_one_on_the_path(tmp_path, monkeypatch):
    on_path = stand_in(tmp_path, "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("UV", raising=False)
    assert uv.find() == on_path
    monkeypatch.setenv("UV", "/opt/uv")
    assert uv.find() == "/opt/uv"


def test_without_uv_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("UV", raising=False)
    with pytest.raises(ConfigurationError, match="takes uv") as caught:
        uv.find()
    assert caught.value.hint == "pip install uv"


def test_downloads_are_counted_against_what_was_announced():
    lines = [
        "Using CPython 3.11.7\n",
        "Downloading torch (500.0MiB)\n",
        "Downloading nccl (1.5GiB)\n",
        " Downloaded torch\n",
        "\n",
        " Downloaded nccl\n",
        "Installed 2 packages in 1.20s\n",
        " + torch==2.13.0\n",
    ]
    fractions = [(step.text, None if step.fraction is None else round(step.fraction, 3)) for step in uv.steps(lines)]
    assert fractions == [
        ("Using CPython 3.11.7", None),
        ("Downloading torch (500.0MiB)", 0.0),
        ("Downloading nccl (1.5GiB)", 0.0),
        ("Downloaded torch", 0.246),
        ("Downloaded nccl", 1.0),
        ("Installed 2 packages in 1.20s", 1.0),
    ]


def test_a_download_that_was_never_announced_counts_for_nothing():
    assert list(uv.steps([" Downloaded surprise\n"])) == [Step("Downloaded surprise", None)]


def test_uv_is_asked_for_exactly_the_lock_and_kept_from_other_projects(tmp_path, monkeypatch):
    body = "print(sys.argv[1:], os.environ.get('VIRTUAL_ENV'), file=sys.stderr)"
    monkeypatch.setenv("UV", stand_in(tmp_path, body))
    monkeypatch.setenv("VIRTUAL_ENV", "/elsewhere")
    told: list[Step] = []
    uv.sync(tmp_path, "3.11", seconds=20.0, tell=told.append)
    words = ["sync", "--frozen", "--no-progress", "--python", "3.11", "--project", str(tmp_path)]
    assert told == [Step(f"{words} None")]


def test_a_failure_carries_the_end_of_what_uv_said(tmp_path, monkeypatch):
    body = "[print('line', n, file=sys.stderr) for n in range(40)]; sys.exit(2)"
    monkeypatch.setenv("UV", stand_in(tmp_path, body))
    with pytest.raises(ConfigurationError, match="code 2") as caught:
        uv.sync(tmp_path, "3.11", seconds=20.0, tell=lambda _: None)
    assert "line 39" in caught.value.message
    assert "line 24\n" not in caught.value.message


def test_a_uv_that_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setenv("UV", stand_in(tmp_path, "time.sleep(60)"))
    with pytest.raises(ConfigurationError, match="code -9"):
        uv.sync(tmp_path, "3.11", seconds=0.3, tell=lambda _: None)
