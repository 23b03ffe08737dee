"""Rounds that fail, and what is left: each ends within its deadline, and a torn server is mended by the next push.

``python exp_failures.py CONTEXT.json SERVER``; a stock server is lost in the end.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import requests
import torch
from gpu_context import Context, Results, main
from gpu_proxy import Proxy
from gpu_sessions import connect, holds, two_models
from weightwire.errors import WeightwireError
from weightwire.options import Options
from weightwire_torch.sources import ModuleSource

TIMEOUT = 15.0
WOKEN = 10.0  # seconds that a server may take to answer after it was frozen
SLACK = 3.0  # seconds over its deadline that a failed push may take


class Tampered(ModuleSource):
    """Does something before a group is gathered."""

    def __init__(self, model: torch.nn.Module) -> None:
        """As the base, with nothing to be done yet."""
        super().__init__(model, Options())
        self.at = -1
        self.do: Callable[[], object] = list

    def gather(self, group: int) -> Sequence[torch.Tensor]:
        """Gather, or fail."""
        if group == self.at:
            self.do()
        return super().gather(group)


def failures(context: Context, results: Results) -> None:
    """One after the other."""
    name = sys.argv[2]
    models = two_models(context)
    with results.step("a control call fails in mid-transfer"):
        control_call(context, results, models)
    with results.step("the source raises in mid-transfer"):
        source_raises(context, results, models)
    if context.servers[name].pid:
        with results.step("the server is wedged in mid-transfer"):
            wedged(context, results, models)


def control_call(context: Context, results: Results, models: dict[str, Any]) -> None:
    """The update is refused by a proxy, so that no worker ever receives what is on its way."""
    name = sys.argv[2]
    direct = context.servers[name].url
    with Proxy(direct) as proxy:
        context.servers[name].url = proxy.url
        try:
            for packed in (True, False):
                with connect(context, name, models["B"], timeout=TIMEOUT, packed=packed) as session:
                    session.push("before")
                    proxy.refuse = "/update_weights"
                    failed(results, session, f"packed={packed}: the engine says no in mid-transfer", within=5.0)
                    proxy.refuse = ""
                    began = time.monotonic()
                    session.push("after")
                    results.tell(f"packed={packed}: the next push mends it", seconds=time.monotonic() - began)
                    holds(context, results, name, model=models["B"], what=f"packed={packed}: and it holds B")
        finally:
            context.servers[name].url = direct


def source_raises(context: Context, results: Results, models: dict[str, Any]) -> None:
    """Filler lets the worker out of its collective."""
    name = sys.argv[2]
    source = Tampered(models["A"])
    with connect(context, name, source, timeout=TIMEOUT) as session:
        source.at, source.do = 3, lambda: 1 / 0
        failed(results, session, "the source raises in mid-transfer", within=5.0)
        source.at = -1
        began = time.monotonic()
        session.push("after")
        results.tell("the next push mends it", seconds=time.monotonic() - began)
        holds(context, results, name, model=models["A"], what="and it holds A")


def wedged(context: Context, results: Results, models: dict[str, Any]) -> None:
    """The server's processes are stopped while they receive."""
    name = sys.argv[2]
    pid = context.servers[name].pid
    source = Tampered(models["B"])
    session = connect(context, name, source, timeout=TIMEOUT, packed=False)
    source.at, source.do = 2, lambda: os.killpg(pid, signal.SIGSTOP)
    failed(results, session, "the server is wedged in mid-transfer", within=TIMEOUT + SLACK)
    began = time.monotonic()
    session.close()
    results.tell("the session closes", ok=time.monotonic() - began < SLACK + 10.0, seconds=time.monotonic() - began)
    usable_gpu(context, results)
    os.killpg(pid, signal.SIGCONT)
    try:
        requests.get(f"{context.servers[name].url}/is_paused", timeout=WOKEN).raise_for_status()
    except requests.RequestException:  # it waits in a collective that has no time-out: the session called it lost
        results.tell("a server that goes on after that does not answer")
        return
    began = time.monotonic()
    with connect(context, name, models["A"]) as again:
        again.push("again")
    results.tell("a server that goes on after that takes the next push", seconds=time.monotonic() - began)
    holds(context, results, name, model=models["A"], what="and it holds A, woken")


def failed(results: Results, session: Any, what: str, *, within: float) -> None:
    """Push, and tell how it failed."""
    began = time.monotonic()
    try:
        session.push("fails")
    except WeightwireError as error:
        took = time.monotonic() - began
        states = list(getattr(error, "engine_states", {}).values())
        results.tell(what, ok=took < within, seconds=took, states=states, error=str(error)[:500])
    else:
        results.tell(what, ok=False, error="nothing was raised")


def usable_gpu(context: Context, results: Results) -> None:
    """After an abort the trainer's own work goes on."""
    began = time.monotonic()
    square = torch.ones(2048, 2048, device=context.device)
    right = bool((square @ square)[0, 0].item() == 2048.0)
    results.tell("the trainer's GPU goes on", ok=right, seconds=time.monotonic() - began)


if __name__ == "__main__":
    main("failures", failures)
