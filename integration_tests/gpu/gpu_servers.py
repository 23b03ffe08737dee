"""vLLM servers on the second GPU, started side by side, gone with all their children at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import requests
from gpu_context import Served
from gpu_site import expose_engine

GPU = "1"
KV_CACHE = 2 << 30  # bytes; said outright, so that servers which start together do not disturb each other's profiling
POLL = 0.5


@dataclass
class Plan:
    """One server.

    Attributes:
        name: what experiments call it.
        model: the directory to serve.
        eager: without CUDA graphs.
        dummy: with random weights, of a model that is a configuration alone.
        ours: with our engine in its environment, and not vLLM's own.
        variables: more of its environment.
    """

    name: str
    model: str
    eager: bool = True
    dummy: bool = False
    ours: bool = False
    variables: dict[str, str] = field(default_factory=dict)

    def arguments(self, port: int) -> list[str]:
        """Its command line, after the module's name."""
        words = ["--model", self.model, "--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16"]
        words += ["--max-model-len", "2048", "--max-num-seqs", "16", "--generation-config", "vllm"]
        words += ["--gpu-memory-utilization", "0.2", "--kv-cache-memory-bytes", str(KV_CACHE)]
        words += ["--weight-transfer-config", json.dumps({"backend": "weightwire" if self.ours else "nccl"})]
        words += ["--load-format", "dummy"] if self.dummy else []
        graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4, 8]}
        return [*words, *(["--enforce-eager"] if self.eager else ["--compilation-config", json.dumps(graphs)])]


class Server:
    """A server as a child process."""

    def __init__(self, plan: Plan, *, site: str, log: Path) -> None:
        """Start it.

        Args:
            plan: what to serve.
            site: where vLLM is unpacked.
            log: what it writes to.
        """
        port = _free_port()
        engine = expose_engine(log.with_suffix(".site")) if plan.ours else []
        self._began = time.monotonic()
        self.name = plan.name
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *plan.arguments(port)],
                env=_environment([site, *engine]) | plan.variables,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.served = Served(f"http://127.0.0.1:{port}", plan.model, pid=self._process.pid, log=str(log))

    def ready(self) -> bool | None:
        """Whether it answers; None if it ended instead."""
        if self.served.ready:
            return True
        if self._process.poll() is not None:
            return None
        with contextlib.suppress(requests.RequestException):
            if requests.get(f"{self.served.url}/health", timeout=2.0).ok:
                self.served.ready = time.monotonic() - self._began
                return True
        return False

    def wait(self, until: float) -> bool:
        """Wait until it answers; whether it did by *until* (seconds of ``time.time()``)."""
        while (ready := self.ready()) is False and time.time() < until:
            time.sleep(POLL)
        return bool(ready)

    def tail(self, characters: int = 1500) -> str:
        """The end of its log."""
        return Path(self.served.log).read_text(errors="replace")[-characters:]

    def stop(self) -> None:
        """Kill it and its children. Idempotent."""
        if self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGCONT)
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10.0)


def _environment(paths: Sequence[str]) -> dict[str, str]:
    """This process's environment, with *paths* in place of our own packages: a stock server knows nothing of them."""
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VLLM_NCCL_SO_PATH"}}
    return kept | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "CUDA_VISIBLE_DEVICES": GPU,
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": "2",  # ten servers that start together would have hundreds of threads
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
