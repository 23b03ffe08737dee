"""Starting the ranks of a trainer: with torchrun, as users do, or one by one, where some shall outlive others."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch.distributed import TCPStore

RANKS = Path(__file__).parent / "ranks"
SECONDS = 300.0


def _variables(**more: str) -> dict[str, str]:
    here = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    ours = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "DS_ACCELERATOR": "cpu",
        "ACCELERATE_USE_CPU": "true",
    }
    return here | ours | more


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def torchrun(
    ranks: int, script: Path, arguments: Sequence[str], *, python: Path = Path(sys.executable), **variables: str
) -> str:
    """Run a script on some ranks, to its end; with another interpreter, where its environment is another.

    Returns:
        What it wrote.

    Raises:
        AssertionError: a rank failed; carries what was written.
    """
    words = [str(python), "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={ranks}"]
    words += ["--master-addr=127.0.0.1", f"--master-port={free_port()}", str(script), *arguments]
    with _process(words, _variables(**variables)) as process:
        said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said[-8000:]
    return said


@contextmanager
def one_by_one(
    ranks: int, script: Path, arguments: Sequence[str], **variables: str
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start a script once for each rank; those that still run at the end are killed.

    As under torchrun, the store that the ranks meet at is not in one of them; unlike torchrun, nobody ends the others
    when one has died.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    with by_themselves(ranks, script, arguments, port=store.port, **agent, **variables) as started:
        yield started


@contextmanager
def by_themselves(
    ranks: int, script: Path, arguments: Sequence[str], *, port: int, **variables: str
) -> Iterator[list[subprocess.Popen[str]]]:
    """Likewise, but the store is in rank 0, and gone with it: no launcher at all. It listens on *port*."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    started = []
    try:
        for rank in range(ranks):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            words = [sys.executable, str(script), *arguments]
            started.append(_start(words, _variables(**place, **meeting, **variables)))
        yield started
    finally:
        for process in started:
            _kill(process)


@contextmanager
def _process(words: Sequence[str], variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = _start(words, variables)
    try:
        yield process
    finally:
        _kill(process)


def _start(words: Sequence[str], variables: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
    if process.stdout is not None:
        process.stdout.close()
