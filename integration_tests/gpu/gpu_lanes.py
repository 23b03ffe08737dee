"""Experiments as processes: some lanes beside each other, each experiment with an end of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_context import Context, Results
from gpu_experiments import Experiment
from gpu_servers import Server

HERE = Path(__file__).parent
READY_WITHIN = 240.0  # seconds a server may take
PATIENCE, PATIENCE_IN_REHEARSAL = 3, 12  # times as long as it should take
LEAST = 0.5  # of what it should take: with less time left it is not begun


@dataclass
class Track:
    """What runs one after the other.

    Attributes:
        context: of the version.
        file: where it is written down.
        experiments: in order.
        servers: that were started for it.
        paths: of what experiments import.
    """

    context: Context
    file: Path
    experiments: Sequence[Experiment]
    servers: Sequence[Server]
    paths: Sequence[str] = field(default_factory=list)

    def run(self, until: float) -> None:
        """Run all of it, but nothing beyond *until* (seconds of ``time.time()``)."""
        results = Results(self.context, "run")
        for experiment in self.experiments:
            if self._ready(experiment, results, until):
                self._one(experiment, results, until)

    def _ready(self, experiment: Experiment, results: Results, until: float) -> bool:
        missing = [name for name in experiment.servers if name not in self.context.servers]
        if missing:
            results.tell(f"{experiment.name} was not run: there is no server {missing[0]}")
            return False
        needed = [server for server in self.servers if server.name in experiment.servers]
        for server in needed:
            known = bool(server.served.ready)
            if not server.wait(min(until, time.time() + READY_WITHIN)):
                results.tell(f"the server {server.name} is not up", ok=False, log=server.tail())
                return False
            if not known:
                results.tell(f"the server {server.name} is up", seconds=server.served.ready)
        return True

    def _one(self, experiment: Experiment, results: Results, until: float) -> None:
        left = until - time.time()
        if left < LEAST * experiment.seconds:
            results.tell(f"{experiment.name} was not run: too little time", left=left)
            return
        self.context.save(self.file)
        began = time.monotonic()
        patience = PATIENCE if self.context.cuda else PATIENCE_IN_REHEARSAL
        ended = _process(self, experiment, min(patience * experiment.seconds, left))
        took = time.monotonic() - began
        results.tell(f"{experiment.name} ended", ok=ended == 0, status=ended, seconds=took, left=until - time.time())


def side_by_side(tracks: Sequence[Track], until: float) -> None:
    """Run tracks beside each other, to the end of the last."""
    threads = [threading.Thread(target=track.run, args=(until,)) for track in tracks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _process(track: Track, experiment: Experiment, limit: float) -> int | str:
    """Run an experiment, its stderr to ``errors.log``; its exit status, or why it was ended."""
    context = track.context
    path = [*track.paths, *([context.site] if experiment.vllm else []), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "HF_HUB_OFFLINE": "1",
        "GPU_UNTIL": str(time.time() + limit),
    }
    words = [sys.executable, "-W", "ignore", str(HERE / experiment.script), str(track.file), *experiment.arguments]
    with (
        (Path(context.out) / "errors.log").open("ab") as errors,
        subprocess.Popen(words, env=environment, stderr=errors, start_new_session=True) as process,
    ):
        try:
            return process.wait(timeout=max(1.0, limit))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the children that it may have
            return f"ended after {limit:.0f} s"
