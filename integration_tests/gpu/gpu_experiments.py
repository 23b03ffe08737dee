"""Which experiments there are, which servers they need, and which may run beside each other."""

from __future__ import annotations

from dataclasses import dataclass

ALONE = ""
"""Instead of a lane: nothing runs beside it."""


@dataclass(frozen=True)
class Experiment:
    """One process.

    Attributes:
        name: what ``--only`` calls it.
        script: beside this file.
        lane: what of one lane runs one after the other, lanes run side by side; :data:`ALONE` for what is timed.
        arguments: after the context.
        servers: that must be up.
        seconds: that it should take; it is ended at three times as many.
        every: for each version that is served, not for the first alone.
        vllm: whether vLLM has to be importable in it.
    """

    name: str
    script: str
    lane: str
    arguments: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    seconds: float = 40.0
    every: bool = False
    vllm: bool = False


LARGE, SMALL = ("large-shape", "large-ours"), ("small-shape", "small-ours")

EXPERIMENTS = (
    Experiment("rounds-eager", "exp_rounds.py", "eager", ("eager",), ("eager",), 60.0, every=True),
    Experiment("rounds-graphs", "exp_rounds.py", "graphs", ("graphs",), ("graphs",), 60.0, every=True),
    Experiment("failures", "exp_failures.py", "graphs", ("graphs",), ("graphs",), 45.0, every=True),
    Experiment("fsdp2", "exp_sources.py", "sources", ("fsdp2", "sources"), ("sources",), 25.0),
    Experiment("zero3", "exp_sources.py", "sources", ("zero3", "sources"), ("sources",), 30.0),
    Experiment("zero3-offload", "exp_sources.py", "sources", ("zero3-offload", "sources"), ("sources",), 30.0),
    Experiment("other-torch", "exp_other_torch.py", "sources", ("sources",), ("sources",), 30.0),
    Experiment("trl", "exp_trl.py", "trl", ("small-shape",), ("small-shape",), 60.0),
    Experiment("releases", "exp_releases.py", "releases", ("sources", "other-nccl"), ("sources", "other-nccl"), 45.0),
    Experiment("ours-eager", "exp_rounds.py", "ours-eager", ("ours-eager",), ("ours-eager",), 60.0, every=True),
    Experiment("ours-graphs", "exp_rounds.py", "ours-graphs", ("ours-graphs",), ("ours-graphs",), 60.0, every=True),
    Experiment("ours-killed", "exp_killed.py", "ours-graphs", ("ours-graphs",), ("ours-graphs",), 45.0, every=True),
    Experiment("ours-failures", "exp_failures.py", "ours-eager", ("ours-eager",), ("ours-eager",), 45.0, every=True),
    Experiment("speed-8b", "exp_speed.py", ALONE, ("large-shape", "8b"), ("large-shape",), 90.0, vllm=True),
    Experiment("speed-0.6b", "exp_speed.py", ALONE, ("small-shape", "0.6b"), ("small-shape",), 35.0, vllm=True),
    Experiment("ours-8b", "exp_ours.py", ALONE, ("large-shape", "large-ours", "8b"), LARGE, 60.0, vllm=True),
    Experiment("ours-0.6b", "exp_ours.py", ALONE, ("small-shape", "small-ours", "0.6b"), SMALL, 40.0, vllm=True),
    Experiment("raw", "exp_raw.py", ALONE, seconds=15.0),
)
"""In the order of their lanes. `failures` ends with a server lost, so it comes last in its lane."""

OPTIONAL = {"other-nccl": "--library"}
"""Servers that are started only where an option is given."""
