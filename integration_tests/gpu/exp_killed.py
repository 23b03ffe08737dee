"""A trainer that is killed in mid-transfer, and the next one, which goes on with the same server.

``python exp_killed.py CONTEXT.json SERVER``; it starts itself again for the trainer that is killed. Not for a stock
server, which would be lost.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import gpu_ways
import requests
import weightwire
from exp_failures import Tampered
from gpu_context import Context, Results, main
from gpu_sessions import connect, holds, two_models

TIMES = 3
AT = 3  # the group before which it is killed
BACK = 20.0  # seconds in which the engine must answer again
DYING = 90.0


def killed(context: Context, results: Results) -> None:
    """Again and again, so that what an abort leaves behind would show."""
    if os.environ.get("TO_BE_KILLED"):
        die(context)
        return
    name = sys.argv[2]
    models = two_models(context)
    for time_ in range(TIMES):
        with results.step(f"trainer {time_} is killed in mid-transfer"):
            once(context, results, models)
    holds(context, results, name, model=models["A"], what="after all of them it holds A")
    gpu_ways.tell(results, context.servers[name].log)


def once(context: Context, results: Results, models: dict[str, Any]) -> None:
    """One is killed; then a new one connects and pushes."""
    name = sys.argv[2]
    url = context.servers[name].url
    environment = os.environ | {"TO_BE_KILLED": "1"}
    status = subprocess.run([sys.executable, *sys.argv], env=environment, timeout=DYING, check=False).returncode
    began = time.monotonic()
    results.tell("the trainer was killed", ok=status == -signal.SIGKILL, status=status)
    paused = answers(url)
    results.tell("the engine answers, and is paused", ok=paused is True, seconds=time.monotonic() - began)
    found = weightwire.inspect(url)
    results.tell("it counts as torn", ok=found.state == "torn", state=str(found.state))
    began = time.monotonic()
    with connect(context, name, models["B"]) as session:
        joined = time.monotonic() - began
        session.push("after")
        results.tell("a new trainer pushes", joined=joined, seconds=time.monotonic() - began)
        holds(context, results, name, model=models["B"], what="and it holds B")
    with connect(context, name, models["A"]) as session:
        session.push("and A again")


def answers(url: str) -> bool | None:
    """Whether the engine says that it is paused; None if it says nothing."""
    try:
        reply = requests.get(f"{url}/is_paused", timeout=BACK)
        return bool(reply.json()["is_paused"])
    except (requests.RequestException, ValueError, KeyError):
        return None


def die(context: Context) -> None:
    """Push once, and be killed in the middle of the second."""
    source = Tampered(two_models(context)["B"])
    session = connect(context, sys.argv[2], source, packed=False)
    session.push("before")
    source.at, source.do = AT, lambda: (time.sleep(0.5), os.kill(os.getpid(), signal.SIGKILL))
    session.push("never")


if __name__ == "__main__":
    main("ours-killed", killed)
