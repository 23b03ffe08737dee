"""The contract on record is that of the release which the other tests here run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "extract_contract.py"


@pytest.mark.quick
def test_the_recorded_contract_is_what_the_installed_release_says(environment):
    package = next(environment.python.parents[1].glob("lib/python*/site-packages/vllm"))
    command = [sys.executable, str(TOOL), "--check", str(package)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
