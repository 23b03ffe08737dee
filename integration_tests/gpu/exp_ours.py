"""Seconds a round for one shape: into our engine, into vLLM's own, and by vLLM's own sender, in turn on one machine.

``python exp_ours.py CONTEXT.json STOCK OURS SHAPE``, with vLLM importable for its sender. See exp_speed.py
for how it is measured, and exp_raw.py for what the wire alone would give.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from statistics import median

import gpu_ways
from exp_speed import LAST, MIB, Bench, Setting, learned, made, measured
from gpu_context import Context, Results, main
from gpu_stock_sender import is_there

CYCLES = 3
SIZES = {"8b": (256, 64, 128, 512, 1024), "0.6b": (256, 64, 128, 512, 1024), "small": (16, 8)}  # MiB
STOCK_SIZE = {"8b": 1024, "0.6b": 1024, "small": 16}


@dataclass
class Row:
    """What is compared.

    Attributes:
        bench: with the server.
        setting: with the sender.
        what: as it is told.
    """

    bench: Bench
    setting: Setting
    what: str


def ours(context: Context, results: Results) -> None:
    """Cycle after cycle over all rows, as long as there is time."""
    stock, engine, shape = *sys.argv[2:4], sys.argv[4] if context.cuda else "small"
    theirs = made(context, results, stock, shape)
    mine = Bench(context, results, engine, theirs.model, theirs.tensors)
    for bench in (theirs, mine):
        with results.step(f"one tensor a collective, into {bench.server}"):
            learned(bench)
    every = rows(context, mine, theirs, shape)
    for cycle in range(CYCLES):
        for row in every if cycle % 2 == 0 else every[::-1]:
            if context.left < LAST:
                results.tell("too little time for another", cycle=cycle, row=row.what)
                break
            with results.step(f"{row.what}, {row.setting}, cycle {cycle}"):
                measured(row.bench, row.setting, cycle)
    verdict(results, every, nbytes=sum(tensor.nbytes for tensor in theirs.tensors["A"]))
    gpu_ways.tell(results, context.servers[engine].log)


def rows(context: Context, mine: Bench, theirs: Bench, shape: str) -> list[Row]:
    """Our engine by size of packs, then what it is compared with."""
    found = [
        Row(mine, Setting("into our engine", mib, {"bucket_bytes": mib * MIB}), "our sender, our engine")
        for mib in SIZES[shape]
    ]
    size = STOCK_SIZE[shape]
    found.append(Row(theirs, Setting("into vLLM's own", size, whole=True), "our sender, vLLM's engine"))
    if context.cuda and is_there():
        found.append(Row(theirs, Setting("vLLM's sender", size, stock=True), "vLLM's sender, vLLM's engine"))
    return found


def verdict(results: Results, every: list[Row], *, nbytes: int) -> None:
    """Best and median of each, by phase, and ours beside every other."""
    for row in every:
        rounds = row.setting.rounds
        for name, of in (("best", min), ("median", median)):
            phases = {phase: float(of([each[phase] for each in rounds])) for phase in rounds[0]} if rounds else {}
            if phases:
                rate = nbytes / phases["transfer"] / 1e9
                results.tell(f"{row.what}: {name} of {len(rounds)}", mib=row.setting.mib, gb_s=rate, **phases)
    mine = [row for row in every if row.bench is every[0].bench and row.setting.totals]
    for row in every:
        if mine and row not in mine and row.setting.totals:
            first = min(mine, key=lambda each: median(each.setting.totals)).setting
            middle = median(first.totals) / median(row.setting.totals)
            best = min(first.totals) / min(row.setting.totals)
            results.tell(f"our engine beside: {row.what}", ok=middle < 1.0, mib=first.mib, best=best, median=middle)


if __name__ == "__main__":
    main(f"ours-{sys.argv[4]}", ours)
