"""Rounds into a stock server: the right weights, packed and not, under load, again and again.

``python exp_rounds.py CONTEXT.json SERVER``
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import gpu_memory
import gpu_ways
from gpu_context import Context, Results, main
from gpu_load import Load
from gpu_models import TEXT, apart, said
from gpu_sessions import FAR, SAME, connect, different, holds, seconds, two_models

REINITS = 10
WARM, ROUNDS, STEP = 10, 100, 20
GROWTH = 16.0  # MiB that may come and go in so many rounds


def rounds(context: Context, results: Results) -> None:
    """All of it, one step after the other."""
    name = sys.argv[2]
    models = two_models(context)
    results.tell("A and B differ", ok=different(models) > FAR, apart=different(models))
    holds(context, results, name, model=models["A"], what="before any round the server holds A")
    before = said(context.servers[name].url)
    for packed in (True, False):
        with results.step(f"A, B, A again, packed={packed}"):
            there_and_back(context, results, models, packed=packed)
            again = said(context.servers[name].url)
            back = apart(before.logprobs, again.logprobs)
            right = again.tokens == before.tokens and back < SAME
            results.tell(f"packed={packed}: A again says what it said before", ok=right, apart=back)
    with results.step("rounds under load"):
        under_load(context, results, models)
    with results.step("the channel is opened again and again"):
        reinits(context, results, models)
    with results.step("memory over many rounds"):
        memory(context, results, models)
    gpu_ways.tell(results, context.servers[name].log)


def there_and_back(context: Context, results: Results, models: dict[str, Any], *, packed: bool) -> None:
    """A, B, A."""
    name = sys.argv[2]
    with connect(context, name, models["A"], packed=packed) as session:
        session.push(1)
        holds(context, results, name, model=models["A"], what=f"packed={packed}: after pushing A it holds A")
    with connect(context, name, models["B"], packed=packed) as session:
        receipt = session.push(2)
        holds(context, results, name, model=models["B"], what=f"packed={packed}: after pushing B it holds B")
        results.tell(f"packed={packed}: one round", **seconds(receipt))
    with connect(context, name, models["A"], packed=packed) as session:
        session.push(3)
        holds(context, results, name, model=models["A"], what=f"packed={packed}: after pushing A again it holds A")


def under_load(context: Context, results: Results, models: dict[str, Any]) -> None:
    """Requests in flight are kept, and all come to their end."""
    name = sys.argv[2]
    with connect(context, name, models["A"]) as to_a, Load(context.servers[name].url, TEXT) as load:
        for version in range(4):
            began = time.monotonic()
            receipt = to_a.push(f"a-{version}", pause="keep")
            gap = load.longest_gap(began, time.monotonic())
            results.tell("a round with 8 streams", gap=gap, **seconds(receipt))
            time.sleep(0.3)
    whole = load.finished > 0 and not load.broken
    results.tell("every request in flight came to its end", ok=whole, finished=load.finished, broken=load.broken[:3])
    holds(context, results, name, model=models["A"], what="after rounds under load it holds A")


def reinits(context: Context, results: Results, models: dict[str, Any]) -> None:
    """Connect, push, close."""
    name = sys.argv[2]
    server = context.servers[name]
    before, took = gpu_memory.of_group(server.pid), []
    for number in range(REINITS):
        model = models["AB"[number % 2]]
        began = time.monotonic()
        with connect(context, name, model) as session:
            took.append(time.monotonic() - began)
            session.push(number)
    holds(context, results, name, model=models["B"], what="after ten channels it holds B")
    grown = gpu_memory.of_group(server.pid) - before
    results.tell("ten channels, one after the other", first=took[0], last=took[-1], most=max(took), servers_mib=grown)


def memory(context: Context, results: Results, models: dict[str, Any]) -> None:
    """What each side's processes hold, more and more rounds on."""
    name = sys.argv[2]
    warm, rounds, step = (WARM, ROUNDS, STEP) if context.cuda else (1, 4, 2)
    for packed in (True, False):
        with connect(context, name, models["A"], packed=packed) as session:
            held, began = [], time.monotonic()
            for version in range(warm + rounds + 1):
                if version >= warm and (version - warm) % step == 0:
                    held.append((gpu_memory.of_group(context.servers[name].pid), gpu_memory.of_group(os.getpid())))
                session.push(version)
            took = time.monotonic() - began
        theirs, ours = ([now - side[0] for now in side] for side in zip(*held, strict=True))
        told = {"servers_mib": theirs, "trainers_mib": ours, "seconds": took}
        results.tell(f"packed={packed}: growth over {rounds} rounds, every {step}", ok=max(ours) <= GROWTH, **told)
    holds(context, results, name, model=models["A"], what="after many rounds it holds A")


if __name__ == "__main__":
    main(f"rounds-{sys.argv[2]}", rounds)
