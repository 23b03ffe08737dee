"""Everything that needs two GPUs and a real vLLM, in one run: the trainer on GPU 0, servers on GPU 1.

``python run_gpu.py --vllm 0.26.0 --site /tmp/site-0.26.0 --out DIR --budget 540`` starts the servers side by side and
runs the experiments one after the other, each in a process of its own, as long as the budget lasts. ``--list`` names
them; ``--only`` chooses. Results: one line each on stdout, and ``results-VERSION.jsonl`` in DIR. See README.md here.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gpu_models
import gpu_servers
from gpu_context import Context, Results, Served
from gpu_servers import Server
from gpu_site import expose

HERE = Path(__file__).parent
READY_WITHIN = 240.0  # seconds a server may take
CLOSING = 15.0  # seconds kept for stopping


@dataclass(frozen=True)
class Experiment:
    """One process.

    Attributes:
        name: what ``--only`` calls it.
        script: beside this file.
        arguments: after the context.
        servers: that must be up.
        seconds: that it should take; it is not begun with fewer left, and ended at three times as many.
        vllm: whether vLLM has to be importable in it.
    """

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    seconds: float = 40.0
    vllm: bool = False


EXPERIMENTS = (
    Experiment("rounds-eager", "exp_rounds.py", ("eager",), ("eager",), 50.0),
    Experiment("rounds-graphs", "exp_rounds.py", ("graphs",), ("graphs",), 50.0),
    Experiment("speed-0.6b", "exp_speed.py", ("small-shape", "0.6b"), ("small-shape",), 25.0),
    Experiment("stock-0.6b", "exp_stock_sender.py", ("small-shape", "0.6b"), ("small-shape",), 35.0, vllm=True),
    Experiment("speed-8b", "exp_speed.py", ("large-shape", "8b"), ("large-shape",), 35.0),
    Experiment("stock-8b", "exp_stock_sender.py", ("large-shape", "8b"), ("large-shape",), 40.0, vllm=True),
    Experiment("raw", "exp_raw.py", seconds=20.0),
    Experiment("releases", "exp_releases.py", ("eager", "other-nccl"), ("eager", "other-nccl"), 45.0),
    Experiment("fsdp2", "exp_sources.py", ("fsdp2", "eager"), ("eager",), 20.0),
    Experiment("zero3", "exp_sources.py", ("zero3", "eager"), ("eager",), 25.0),
    Experiment("zero3-offload", "exp_sources.py", ("zero3-offload", "eager"), ("eager",), 25.0),
    Experiment("failures", "exp_failures.py", ("graphs",), ("graphs",), 45.0),
)
"""In the order of what they are worth; `failures` ends with a server lost, so it comes last."""


def main() -> int:
    """Run."""
    arguments = parsed(sys.argv[1:])
    if arguments.list:
        sys.stdout.write("".join(f"{experiment.name}\n" for experiment in EXPERIMENTS))
        return 0
    scratch = Path(tempfile.mkdtemp(prefix="weightwire-gpu-"))
    points = ["rehearsal = gpu_rehearsal"] if arguments.rehearse else []
    paths = [*expose(scratch / "site", extra=points), str(HERE)]
    context = made(arguments)
    results = Results(context, "run")
    chosen = [experiment for experiment in EXPERIMENTS if not arguments.only or experiment.name in arguments.only]
    servers = started(context, chosen, scratch) if not arguments.url else []
    try:
        for experiment in chosen:
            one(context, experiment, results, servers=servers, paths=paths)
    finally:
        for server in servers:
            server.stop()
        keep_logs(context, servers)
    return 0


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", default="0.26.0", help="the version that is served")
    parser.add_argument("--site", default="", help="where it is unpacked")
    parser.add_argument("--out", default=os.environ.get("OUT", "."), help="where results go")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds for everything")
    parser.add_argument("--only", nargs="*", default=[], help="names of experiments")
    parser.add_argument("--library", default="", help="another libnccl than torch's, for `releases`")
    parser.add_argument("--url", nargs="*", default=[], metavar="NAME=URL=MODEL", help="servers that are up already")
    parser.add_argument("--option", nargs="*", default=[], metavar="KEY=VALUE", help="an option of every session")
    parser.add_argument("--rehearse", action="store_true", help="without GPUs: NCCL's stand-in, the trainer on the CPU")
    parser.add_argument("--list", action="store_true", help="name the experiments")
    return parser.parse_args(words)


def made(arguments: argparse.Namespace) -> Context:
    """What the experiments are told."""
    context = Context(
        version=arguments.vllm,
        site=arguments.site,
        out=str(Path(arguments.out).resolve()),
        until=time.time() + arguments.budget - CLOSING,
        device="cpu" if arguments.rehearse else "cuda",
        library=arguments.library,
    )
    Path(context.out).mkdir(parents=True, exist_ok=True)
    for word in arguments.url:
        name, url, model = word.split("=", 2)
        context.servers[name] = Served(url, model, ready=1.0)
    context.options = dict(word.split("=", 1) for word in arguments.option)
    if arguments.rehearse:
        context.options["data_plane"] = "nccl-rehearsal"
    return context


def started(context: Context, chosen: Sequence[Experiment], scratch: Path) -> list[Server]:
    """Start every server that a chosen experiment needs, all at once."""
    wanted = {name for experiment in chosen for name in experiment.servers}
    if "other-nccl" in wanted and not context.library:
        wanted.discard("other-nccl")
    small = gpu_models.save_small(scratch / "a", 1)
    plans = [
        gpu_servers.Plan("eager", small),
        gpu_servers.Plan("graphs", small, eager=False),
        gpu_servers.Plan("small-shape", gpu_models.save_shape(scratch / "0.6b", "0.6b"), dummy=True),
        gpu_servers.Plan("large-shape", gpu_models.save_shape(scratch / "8b", "8b"), dummy=True),
        gpu_servers.Plan("other-nccl", small, variables={"VLLM_NCCL_SO_PATH": context.library}),
    ]
    servers = []
    for plan in plans:
        if plan.name in wanted:
            log = scratch / f"server-{plan.name}.log"
            servers.append(gpu_servers.Server(plan, site=context.site, log=log))
            context.servers[plan.name] = servers[-1].served
    return servers


def one(
    context: Context, experiment: Experiment, results: Results, *, servers: Sequence[Server], paths: Sequence[str]
) -> None:
    """Run one experiment, if it can be and there is time."""
    missing = [name for name in experiment.servers if name not in context.servers]
    if missing:
        results.tell(f"{experiment.name} was not run: there is no server {missing[0]}")
        return
    for server in servers:
        if server.name in experiment.servers and not up(context, server, results):
            return
    if context.left < experiment.seconds:
        results.tell(f"{experiment.name} was not run: too little time", left=context.left)
        return
    began = time.monotonic()
    ended = run(context, experiment, paths)
    results.tell(f"{experiment.name} ended", status=ended, seconds=time.monotonic() - began, left=context.left)


def up(context: Context, server: Server, results: Results) -> bool:
    """Wait for a server; whether it is up."""
    known = bool(server.served.ready)
    if server.wait(min(context.until, time.time() + READY_WITHIN)):
        if not known:
            results.tell(f"the server {server.name} is up", seconds=server.served.ready)
        return True
    results.tell(f"the server {server.name} is not up", ok=False, log=server.tail())
    return False


def run(context: Context, experiment: Experiment, paths: Sequence[str]) -> int | str:
    """Run its process; its exit status, or why it was ended."""
    file = context.save(Path(context.out) / "context.json")
    path = [*paths, *([context.site] if experiment.vllm else []), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path)), "PYTHONUNBUFFERED": "1"}
    environment |= {"HF_HUB_OFFLINE": "1", "PYTHONFAULTHANDLER": "1"}
    words = [sys.executable, str(HERE / experiment.script), str(file), *experiment.arguments]
    patience = 3 if context.cuda else 12
    limit = max(1.0, min(patience * experiment.seconds, context.left))
    with subprocess.Popen(words, env=environment, start_new_session=True) as process:
        try:
            return process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the children that it may have
            return f"ended after {limit:.0f} s"


def keep_logs(context: Context, servers: Sequence[Server]) -> None:
    """The ends of the servers' logs, in one file."""
    with (Path(context.out) / f"servers-{context.version}.log").open("w") as file:
        for server in servers:
            file.write(f"===== {server.name}\n{server.tail(200_000)}\n")


if __name__ == "__main__":
    sys.exit(main())
