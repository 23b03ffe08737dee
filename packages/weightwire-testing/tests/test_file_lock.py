"""One holder at a time, also over processes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from weightwire.errors import DeadlineExceeded
from weightwire_testing.file_lock import holding

HOLDER = """
import sys
from pathlib import Path
from weightwire_testing.file_lock import holding
with holding(Path(sys.argv[1]), 10.0, on_wait=lambda: None):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock until its standard input closes."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_free_lock_is_taken_without_waiting_and_again_after(tmp_path):
    waited = []
    for _ in range(2):
        with holding(tmp_path / "lock", 1.0, on_wait=lambda: waited.append(1)):
            pass
    assert waited == []


def test_waiting_for_another_process_is_said_once_and_bounded(tmp_path, holder):
    waited = []
    with (
        pytest.raises(DeadlineExceeded, match="another process that holds"),
        holding(tmp_path / "lock", 0.7, on_wait=lambda: waited.append(1)),
    ):
        pass
    assert waited == [1]


def test_a_lock_is_free_when_its_holder_was_killed(tmp_path, holder):
    holder.kill()
    holder.wait(10)
    with holding(tmp_path / "lock", 5.0, on_wait=lambda: None):
        pass
