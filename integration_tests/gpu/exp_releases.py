"""Two releases of NCCL: refused in seconds, and the cure.

``python exp_releases.py CONTEXT.json SERVER OTHER``: SERVER runs torch's NCCL, OTHER another.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
import weightwire
from gpu_context import Context, Results, main
from gpu_models import off, small_model
from gpu_sessions import CLOSE, connect
from weightwire.errors import CompatibilityError, WeightwireError
from weightwire_torch import nccl_version

SECONDS = 20.0


def releases(context: Context, results: Results) -> None:
    """Refuse, join with the other library, and see what an unknown release does."""
    server, other = sys.argv[2:4]
    model = small_model(2, context.device)
    torch.cuda.nccl.version()
    results.tell("releases", torch=nccl_version.ours(), other=nccl_version.ours(context.library))
    info = weightwire.inspect(context.servers[server].url)
    results.tell("what the server tells", ok=bool(info.nccl_version), nccl=info.nccl_version, seen=str(info.variables))
    with results.step("a mismatch is refused"):
        refused(context, results, server, model, library=brought(context))
    with results.step("the cure: the trainer loads the engine's library beside torch's"):
        cured(context, results, other, model)
    with results.step("an engine that does not tell its release"):
        unknown(context, results, other, model)


def refused(context: Context, results: Results, server: str, model: Any, *, library: str) -> None:
    """Before anybody joins: the trainer has *library*, or torch's own if that is empty."""
    began = time.monotonic()
    try:
        connect(context, server, model, nccl_library=library).close()
    except CompatibilityError as error:
        results.tell("a mismatch is refused", ok=True, seconds=time.monotonic() - began, error=str(error))
    else:
        results.tell("a mismatch is refused", ok=False, error="nothing was raised")


def cured(context: Context, results: Results, other: str, model: Any) -> None:
    """Both run the other release."""
    began = time.monotonic()
    with connect(context, other, model, nccl_library=brought(context)) as session:
        joined = time.monotonic() - began
        session.push("cured")
        found = off(context.servers[other].url, model)
        results.tell("the cure", ok=found < CLOSE, apart=found, joined=joined)


def brought(context: Context) -> str:
    """The libnccl that was brought: for this experiment, or for every session."""
    return context.library or str(context.options.get("nccl_library", ""))


def unknown(context: Context, results: Results, other: str, model: Any) -> None:
    """The trainer has torch's, the engine another, and nobody said so: the join ends at the deadline."""
    began = time.monotonic()
    try:
        connect(context, other, model, timeout=SECONDS).close()
    except WeightwireError as error:
        took = time.monotonic() - began
        results.tell("an unknown mismatch", ok=took < SECONDS + 5.0, seconds=took, error=str(error))
    else:
        results.tell("an unknown mismatch", ok=False, error="nothing was raised")


if __name__ == "__main__":
    main("releases", releases)
