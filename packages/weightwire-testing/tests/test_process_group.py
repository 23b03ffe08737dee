"""A child goes with all its descendants, and when its parent dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from weightwire.deadlines import Deadline
from weightwire_testing.process_group import ProcessGroup

FAMILY = "import subprocess, sys; c = subprocess.Popen(['sleep', '60']); print(c.pid, flush=True); c.wait()"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"


def alive(pid: int) -> bool:
    """Whether the process runs; one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition, seconds: float = 20.0) -> None:
    deadline = Deadline.after(seconds)
    while not condition():
        deadline.check("waiting in a test")
        time.sleep(0.01)


def start(tmp_path, code: str) -> tuple[ProcessGroup, str]:
    """A group, and the first line that it wrote."""
    log = tmp_path / "log"
    with log.open("wb") as output:
        group = ProcessGroup([sys.executable, "-c", code], os.environ, output=output)
    until(lambda: log.read_bytes().endswith(b"\n"))
    return group, log.read_text()


def test_descendants_go_with_the_group(tmp_path):
    group, said = start(tmp_path, FAMILY)
    assert group.returncode is None
    group.stop(5.0)
    assert not alive(int(said))
    assert group.returncode == -signal.SIGTERM


def test_a_process_that_does_not_listen_is_killed(tmp_path):
    group, _ = start(tmp_path, DEAF)
    began = time.monotonic()
    group.stop(0.2)
    assert group.returncode == -signal.SIGKILL
    assert time.monotonic() - began < 5.0


def test_stopping_one_that_has_ended_is_harmless_and_takes_its_orphans(tmp_path):
    group, said = start(tmp_path, FAMILY.replace("c.wait()", ""))
    until(lambda: group.returncode is not None)
    group.stop(1.0)
    group.stop(1.0)
    assert not alive(int(said))


def test_the_group_goes_when_its_parent_is_killed(tmp_path):
    code = textwrap.dedent("""
        import os, sys, time
        from weightwire_testing.process_group import ProcessGroup
        with open(sys.argv[1], "wb") as output:
            group = ProcessGroup(["sleep", "60"], os.environ, output=output)
        print(group.pid, flush=True)
        time.sleep(60)
    """)
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.communicate()
    until(lambda: not alive(pid))
