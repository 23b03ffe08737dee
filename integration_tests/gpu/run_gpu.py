"""Everything that needs two GPUs and a real vLLM, in one run: trainers on GPU 0, servers on GPU 1.

``python run_gpu.py --versions 0.26.0 0.24.0 --sites /tmp/sites --out DIR --budget 440`` starts the servers of all
versions side by side, runs what is right or wrong in lanes beside each other, stops the servers that are done with, and
measures what is fast or slow alone. ``--list`` names the experiments; ``--only`` chooses. Results: one line each on
stdout, and ``results.jsonl`` in DIR. See README.md here.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import gpu_models
from gpu_context import Context, Served
from gpu_experiments import ALONE, EXPERIMENTS, OPTIONAL, Experiment
from gpu_lanes import HERE, Track, side_by_side
from gpu_servers import Plan, Server
from gpu_site import expose

CLOSING = 10.0  # seconds kept for stopping
OWN_NCCL = "nvidia/nccl/lib/libnccl.so.2"  # in a site that brings a torch of its own


def main() -> int:
    """Run."""
    arguments = parsed(sys.argv[1:])
    if arguments.list:
        sys.stdout.write("".join(f"{experiment.name}\n" for experiment in EXPERIMENTS))
        return 0
    scratch = Path(tempfile.mkdtemp(prefix="weightwire-gpu-"))
    points = ["rehearsal = gpu_rehearsal"] if arguments.rehearse else []
    paths = [*expose(scratch / "site", extra=points), str(HERE)]
    until = time.time() + arguments.budget - CLOSING
    chosen = [one for one in EXPERIMENTS if not arguments.only or one.name in arguments.only]
    runs = [Run(arguments, version, until, scratch=scratch, paths=paths) for version in arguments.versions]
    try:
        for run in runs:
            run.choose(chosen if run is runs[0] else [one for one in chosen if one.every])
        work(runs, until, reserve=sum(one.seconds for one in chosen if one.lane == ALONE))
    finally:
        for run in runs:
            run.stop(())
        keep_logs(Path(arguments.out), runs)
    return 0


def work(runs: Sequence[Run], until: float, *, reserve: float) -> None:
    """Lanes first, and then what runs alone.

    Args:
        runs: one for each version.
        until: when all must be over.
        reserve: seconds of it that are kept for what runs alone.
    """
    tracks = [track for run in runs for track in run.lanes()]
    for together in [[track] for track in tracks] if any(run.given for run in runs) else [tracks]:
        side_by_side(together, until - reserve)
    for run in runs:
        run.stop(run.alone.experiments)
    for run in runs:
        run.alone.run(until)


class Run:
    """One version."""

    def __init__(
        self, arguments: argparse.Namespace, version: str, until: float, *, scratch: Path, paths: Sequence[str]
    ) -> None:
        """Start nothing yet."""
        self.context = made(arguments, version, until)
        self.given = bool(arguments.url)  # servers that may be one and the same: no lanes beside each other
        self.servers: list[Server] = []
        self._scratch = scratch / version
        self._scratch.mkdir()
        self._paths = paths
        self._chosen: Sequence[Experiment] = ()

    def choose(self, experiments: Sequence[Experiment]) -> None:
        """Start the servers that *experiments* need, all at once, unless some were given."""
        self._chosen = experiments
        wanted = {name for experiment in experiments for name in experiment.servers}
        wanted -= {name for name in OPTIONAL if not self.context.library}
        for plan in [] if self.given else planned(wanted, self._scratch, self.context.library):
            log = self._scratch / f"server-{plan.name}.log"
            self.servers.append(Server(plan, site=self.context.site, log=log))
            self.context.servers[plan.name] = self.servers[-1].served

    def lanes(self) -> list[Track]:
        """What runs side by side."""
        names = dict.fromkeys(one.lane for one in self._chosen if one.lane != ALONE)
        return [self._track(name) for name in names]

    @property
    def alone(self) -> Track:
        """What nothing runs beside."""
        return self._track(ALONE)

    def stop(self, but_for: Sequence[Experiment]) -> None:
        """Stop the servers that no experiment of *but_for* needs."""
        kept = {name for experiment in but_for for name in experiment.servers}
        for server in self.servers:
            if server.name not in kept:
                server.stop()

    def _track(self, lane: str) -> Track:
        experiments = [one for one in self._chosen if one.lane == lane]
        file = self._scratch / f"context-{lane or 'alone'}.json"
        return Track(self.context, file, experiments, self.servers, paths=self._paths)


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", nargs="+", default=["0.26.0"], help="the releases of vLLM that are served")
    parser.add_argument("--sites", default="", help="a directory with one of each version's name, where it is unpacked")
    parser.add_argument("--out", default=os.environ.get("OUT", "."), help="where results go")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds for everything")
    parser.add_argument("--only", nargs="*", default=[], help="names of experiments")
    parser.add_argument("--library", default="", help="another libnccl than torch's, for `releases`")
    parser.add_argument("--url", nargs="*", default=[], metavar="NAME=URL=MODEL", help="servers that are up already")
    parser.add_argument("--option", nargs="*", default=[], metavar="KEY=VALUE", help="an option of every session")
    parser.add_argument("--rehearse", action="store_true", help="without GPUs: NCCL's stand-in, trainers on the CPU")
    parser.add_argument("--list", action="store_true", help="name the experiments")
    return parser.parse_args(words)


def made(arguments: argparse.Namespace, version: str, until: float) -> Context:
    """What the experiments of one version are told."""
    context = Context(
        version=version,
        site=str(Path(arguments.sites) / version) if arguments.sites else "",
        out=str(Path(arguments.out).resolve()),
        until=until,
        device="cpu" if arguments.rehearse else "cuda",
        library=arguments.library,
    )
    Path(context.out).mkdir(parents=True, exist_ok=True)
    for word in arguments.url:
        name, url, model = word.split("=", 2)
        context.servers[name] = Served(url, model, ready=1.0)
    context.options = dict(word.split("=", 1) for word in arguments.option)
    own = Path(context.site) / OWN_NCCL
    if context.site and own.is_file():
        context.options.setdefault("nccl_library", str(own))
    if arguments.rehearse:
        context.options["data_plane"] = "nccl-rehearsal"
    return context


def planned(wanted: set[str], scratch: Path, library: str) -> list[Plan]:
    """The servers of these names; their models are made."""
    if not wanted:
        return []
    small = gpu_models.save_small(scratch / "a", 1)
    plans = [
        Plan("eager", small),
        Plan("graphs", small, eager=False),
        Plan("sources", small),
        Plan("other-nccl", small, variables={"VLLM_NCCL_SO_PATH": library}),
        Plan("ours-eager", small, ours=True),
        Plan("ours-graphs", small, eager=False, ours=True),
    ]
    for size, shape in (("small", "0.6b"), ("large", "8b")):
        for name in wanted & {f"{size}-shape", f"{size}-ours"}:
            model = gpu_models.save_shape(scratch / shape, shape)
            plans.append(Plan(name, model, dummy=True, ours=name.endswith("-ours")))
    return [plan for plan in plans if plan.name in wanted]


def keep_logs(out: Path, runs: Sequence[Run]) -> None:
    """The ends of the servers' logs, in one file."""
    with (out / "servers.log").open("w") as file:
        for run in runs:
            for server in run.servers:
                file.write(f"===== {run.context.version} {server.name}\n{server.tail(100_000)}\n")


if __name__ == "__main__":
    sys.exit(main())
