"""Cells of the tier *cpu*: a real server, started by the tests in integration_tests/real."""

from __future__ import annotations

import sys
from pathlib import Path

from matrix_cells import ROOT, Cell
from matrix_pytest import run
from weightwire_testing import environments

TESTS = ROOT / "integration_tests"
LOGS = ROOT / ".matrix" / "logs"
SECONDS = 1500.0
"""The longest that one server with all its tests may take."""

LAYOUTS = {"tp1": "tp1-dp1", "tp2": "tp2-dp1", "dp2": "tp1-dp2"}
"""As the tests name their servers."""

MODEL = "qwen3"

FILES = {
    "plain": "real/test_pushes.py",
    "fsdp2": "trainers/test_real_servers.py",
    "deepspeed": "trainers/test_real_servers.py",
    "trl": "trainers/test_trl_scripts.py",
}
"""Where a trainer's tests stand."""


def missing(cell: Cell) -> str:
    """Why a cell can't be run here; empty where it can."""
    if cell.vllm not in environments.known():
        return f"there are no pins for vLLM {cell.vllm}"
    if not _tests(cell).exists():
        return f"{_tests(cell).relative_to(ROOT)} is not there yet"
    return ""


def try_on_a_server(cell: Cell) -> tuple[bool, str]:
    """Start the server and run its tests; returns whether they passed, and what there is to say."""
    words = [sys.executable, "-m", "pytest", "-q", "-x", str(_tests(cell)), *_selection(cell)]
    report = run(words, log=LOGS / f"{cell.id}.log", seconds=SECONDS)
    if report.failures or not report.tests:
        return False, f"{report.failures} of {report.tests} tests failed: {report.tail}"
    largest = report.properties.get("largest difference")
    return True, f"{report.tests} tests" + (f", max abs(Δ log p) = {largest}" if largest else "")


def _tests(cell: Cell) -> Path:
    return TESTS / FILES[cell.trainer]


def _selection(cell: Cell) -> list[str]:
    """The cell's own tests in that file: a plain trainer's by the server, another's by itself and the release."""
    if cell.trainer == "plain":
        return ["--vllm", cell.vllm, "-k", f"{cell.engine}-{MODEL}-{LAYOUTS[cell.layout]}"]
    return ["-k", f"{cell.trainer}-{cell.engine}-{cell.vllm}"]
