"""Sessions as an experiment needs them, and the check that a server holds a model."""

from __future__ import annotations

from typing import Any

import torch
import weightwire
from gpu_context import Context, Results
from gpu_models import TEXT, apart, expected, off, small_model

CLOSE = 0.2  # log-probabilities in bfloat16, two implementations of one model
FAR = 1.0  # two models
SAME = 0.02  # one implementation, one model, two moments


def connect(context: Context, name: str, model: Any, **options: object) -> Any:
    """A session with the server *name*."""
    chosen = {"timeout": 60.0, **context.options, **options}
    return weightwire.connect(context.servers[name].url, model, chosen)


def two_models(context: Context) -> dict[str, Any]:
    """A, which the servers were started with, and B."""
    return {"A": small_model(1, context.device), "B": small_model(2, context.device)}


def holds(context: Context, results: Results, name: str, *, model: Any, what: str) -> bool:
    """Tell whether the server's log-probabilities are the model's own."""
    found = off(context.servers[name].url, model)
    results.tell(what, ok=found < CLOSE, server=name, apart=found)
    return found < CLOSE


def different(models: dict[str, Any]) -> float:
    """How far apart A and B are: what makes the check above worth something."""
    return apart(expected(models["A"], TEXT), expected(models["B"], TEXT))


def poison(tensors: list[torch.Tensor]) -> None:
    """Fill with what no weight is."""
    for tensor in tensors:
        tensor.fill_(float("nan"))


def seconds(receipt: Any) -> dict[str, float]:
    """A receipt's phases, and what the transfer was made of."""
    stats = receipt.stats
    return {**receipt.phases, "total": sum(receipt.phases.values()), "packing": stats.pack, "on_the_wire": stats.wire}
