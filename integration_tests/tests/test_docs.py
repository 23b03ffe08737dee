"""What the documents say can be typed exists, and what they link to is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "packages/*/*.md", "plugins/*/*.md", "integration_tests/**/*.md")
    for path in ROOT.glob(pattern)
)
SESSIONS = set(re.findall(r"^@nox\.session.*?\ndef (\w+)\(", (ROOT / "noxfile.py").read_text(), re.MULTILINE))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", document.read_text())
    relative = [link for link in links if "://" not in link and link != "NNNN-title.md"]
    assert [link for link in relative if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", [*DOCUMENTS, ROOT / "justfile", ROOT / ".ci" / "run"], ids=name)
def test_every_session_that_is_named_exists(document: Path) -> None:
    assert set(re.findall(r"\bnox -s (\w+)", document.read_text())) <= SESSIONS


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_tool_that_is_named_exists(document: Path) -> None:
    tools = re.findall(r"\btools/(\w+\.py)", document.read_text())
    assert [tool for tool in tools if not (ROOT / "tools" / tool).exists()] == []


def test_the_engine_to_try_a_trainer_on_is_there_in_five_lines(tmp_path: Path) -> None:
    readme = (ROOT / "packages" / "weightwire-testing" / "README.md").read_text()
    (script,) = (block for block in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "connect" in block)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "committed=True" in done.stdout


def test_every_decision_is_listed() -> None:
    listed = (ROOT / "docs" / "adr" / "README.md").read_text()
    pages = {path.name for path in (ROOT / "docs" / "adr").glob("[0-9]*.md")}
    assert {page for page in pages if f"]({page})" not in listed} == set()


def test_the_ci_script_is_sound_and_calls_the_readmes_test_command() -> None:
    script = ROOT / ".ci" / "run"
    subprocess.run(["bash", "-n", str(script)], timeout=10, check=True)
    assert os.access(script, os.X_OK)
    assert "uv run --frozen nox -s tests" in script.read_text()
    assert "uv run --frozen nox -s tests" in (ROOT / "CONTRIBUTING.md").read_text()
