"""Seconds a phase for one shape: ours, by size of the buckets.

``python exp_speed.py CONTEXT.json SERVER SHAPE``
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from gpu_context import Context, Results, main
from gpu_models import shaped_model
from gpu_sessions import connect, seconds

MIB = 1 << 20
BUCKETS = (64 * MIB, 256 * MIB, 1024 * MIB)
ROUNDS = 5


def speed(context: Context, results: Results) -> None:
    """Every size of buckets, then one tensor a collective."""
    server, shape = sys.argv[2:4]
    model = shaped_model(shape, context.device)
    for bucket in BUCKETS:
        with results.step(f"{shape}, buckets of {bucket // MIB} MiB"):
            told(results, shape, f"{bucket // MIB}", rounds(context, server, model, bucket_bytes=bucket))
    with results.step(f"{shape}, unpacked"):
        told(results, shape, "unpacked", rounds(context, server, model, packed=False))


def rounds(context: Context, server: str, model: torch.nn.Module, **options: object) -> list[Any]:
    """A few rounds on one channel."""
    with connect(context, server, model, **options) as session:
        return [session.push(f"{options}-{number}") for number in range(ROUNDS)]


def told(results: Results, shape: str, buckets: str, receipts: list[Any]) -> None:
    """Each round, and the best of all but the first."""
    for number, receipt in enumerate(receipts):
        results.tell("ours", shape=shape, buckets=buckets, round=number, **seconds(receipt))
    totals = [sum(receipt.phases.values()) for receipt in receipts[1:]]
    nbytes = receipts[0].stats.nbytes
    best = min(totals)
    results.tell("ours, best", shape=shape, buckets=buckets, total=best, gb_per_s=nbytes / best / 1e9, nbytes=nbytes)


if __name__ == "__main__":
    main(f"speed-{sys.argv[3]}", speed)
