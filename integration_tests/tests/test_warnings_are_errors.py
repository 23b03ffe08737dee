"""pytest's configuration makes a warning raised in a module of ours an error, and no other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WARNS = "import warnings\ndef old(level=1): warnings.warn('use new()', {category}, stacklevel=level)\n"


def outcome(folder: Path, test: str, category: str = "DeprecationWarning") -> str:
    """Run a one-line test against modules that warn, under the repository's configuration; return pytest's output."""
    (folder / "weightwire_sample").mkdir()
    (folder / "weightwire_sample" / "__init__.py").write_text("")
    (folder / "weightwire_sample" / "deep.py").write_text(WARNS.format(category=category))
    (folder / "elsewhere.py").write_text("# weightwire in the text\n" + WARNS.format(category=category))
    (folder / "test_it.py").write_text(
        f"import threading, elsewhere, weightwire_sample.deep\ndef test_it():\n    {test}\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    done = subprocess.run(
        [*command, f"--rootdir={folder}", str(folder / "test_it.py")],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout


@pytest.mark.parametrize("category", ["DeprecationWarning", "UserWarning", "ResourceWarning", "FutureWarning"])
def test_a_warning_raised_in_our_module_fails_the_test(tmp_path: Path, category: str) -> None:
    out = outcome(tmp_path, "weightwire_sample.deep.old()", category)
    assert f"{category}: use new()" in out
    assert "1 failed" in out


def test_a_warning_of_another_module_does_not(tmp_path: Path) -> None:
    assert "1 passed" in outcome(tmp_path, "elsewhere.old()")


def test_a_warning_that_blames_the_calling_test_does_not(tmp_path: Path) -> None:
    assert "1 passed" in outcome(tmp_path, "weightwire_sample.deep.old(level=2)")


def test_an_error_lost_in_a_thread_fails_the_test(tmp_path: Path) -> None:
    out = outcome(tmp_path, "t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()")
    assert "ZeroDivisionError" in out
    assert "1 failed" in out
