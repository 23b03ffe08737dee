"""Seconds a round for one shape: ours and vLLM's own sender in turn, by size of the packs, and what each brought.

``python exp_speed.py CONTEXT.json SERVER SHAPE``, with vLLM importable for its sender. How fast the
server's Python runs changes by a third from minute to minute on a shared host, so what is compared runs in turn, round
after round, and not one after the other. Every connection pushes B, A, B, A, and what the server then says must be what
it said of the same weights when they came one tensor at a time: a race of two packs would show.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import gpu_memory
import torch
import weightwire.plan
from gpu_context import Context, Results, main
from gpu_models import Said, apart, fill, off, said, shaped_model
from gpu_sessions import FAR, SAME, connect, seconds
from gpu_stock_sender import is_there, stock_sender

MIB = 1 << 20
SIZES = {"8b": (1024, 512, 2048, 256), "0.6b": (1024, 512, 256), "small": (16, 8)}  # MiB, the default first
CYCLES = 3
ORDER = "BABA"
LAST = 8.0  # seconds that a connection may take: none is begun later than this before the end


@dataclass
class Setting:
    """Who sends, and how.

    Attributes:
        sender: as it is told.
        mib: size of the packs; 0 for one tensor each.
        options: of our session.
        whole: the size may become smaller, as the default does.
        stock: vLLM's own sender.
        totals: seconds of each round but the first of its connection.
        rounds: what those were made of.
    """

    sender: str
    mib: int
    options: dict[str, Any] = field(default_factory=dict)
    whole: bool = False
    stock: bool = False
    totals: list[float] = field(default_factory=list)
    rounds: list[dict[str, float]] = field(default_factory=list)

    def __str__(self) -> str:
        """Its name."""
        return f"{self.sender}, {self.mib} MiB" if self.mib else self.sender


@dataclass
class Bench:
    """What all settings share.

    Attributes:
        context: of the run.
        results: where it is told.
        server: its name.
        model: whose parameters are A's or B's.
        tensors: of A and of B, in the order of the parameters.
        right: what the server says of each.
    """

    context: Context
    results: Results
    server: str
    model: torch.nn.Module
    tensors: dict[str, list[torch.Tensor]]
    right: dict[str, Said] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The server's."""
        return self.context.servers[self.server].url

    def use(self, which: str) -> None:
        """Put A or B into the model."""
        for parameter, tensor in zip(self.model.parameters(), self.tensors[which], strict=True):
            parameter.data = tensor

    def named(self, which: str) -> list[tuple[str, torch.Tensor]]:
        """A or B, by name."""
        names = [name for name, _ in self.model.named_parameters()]
        return list(zip(names, self.tensors[which], strict=True))


def speed(context: Context, results: Results) -> None:
    """Cycle after cycle over all settings, as long as there is time."""
    server, shape = sys.argv[2], sys.argv[3] if context.cuda else "small"
    bench = made(context, results, server, shape)
    with results.step("one tensor a collective"):
        learned(bench)
    every = settings(shape, stock=context.cuda and is_there())
    for cycle in range(CYCLES):
        for setting in every if cycle % 2 == 0 else every[::-1]:
            if context.left < LAST:
                results.tell("too little time for another", cycle=cycle, setting=str(setting))
                return verdict(results, every)
            with results.step(f"{setting}, cycle {cycle}"):
                measured(bench, setting, cycle)
        results.tell("the server's memory, MiB", cycle=cycle, held=gpu_memory.of_group(context.servers[server].pid))
    return verdict(results, every)


def made(context: Context, results: Results, server: str, shape: str) -> Bench:
    """A model, and two sets of weights for it."""
    model = shaped_model(shape, context.device)
    tensors = {"A": [parameter.data for parameter in model.parameters()]}
    tensors["B"] = [torch.empty_like(tensor) for tensor in tensors["A"]]
    for seed, which in enumerate("AB"):
        fill(tensors[which], seed)
    return Bench(context, results, server, model, tensors)


def settings(shape: str, *, stock: bool) -> list[Setting]:
    """Ours beside vLLM's own for each size, and what only we have."""
    found: list[Setting] = []
    for mib in SIZES[shape]:
        found.append(Setting("ours", mib, whole=True))
        found += [Setting("vLLM's own", mib, stock=True)] if stock else []
    found.append(Setting("ours, one pack at a time", SIZES[shape][0], {"num_buckets": 1}))
    found.append(Setting("ours, unpacked", 0, {"packed": False}))
    return found


def learned(bench: Bench) -> None:
    """What the server says of A and of B when they come in the safest way, beside a forward of our own."""
    with connect(bench.context, bench.server, bench.model, packed=False) as session:
        for which in "AB":
            bench.use(which)
            session.push(which)
            bench.right[which] = said(bench.url)
            found = off(bench.url, bench.model)
            bench.results.tell(f"{which} beside Hugging Face's forward", apart=found, ok=found < FAR / 2)
    found = apart(bench.right["A"].logprobs, bench.right["B"].logprobs)
    bench.results.tell("A and B differ", ok=found > FAR, apart=found)


def measured(bench: Bench, setting: Setting, cycle: int) -> None:
    """One connection, some rounds, the last two held to what they brought."""
    with opened(bench, setting) as push:
        for number, which in enumerate(ORDER):
            bench.use(which)
            began = time.monotonic()
            phases = push(which)
            phases["total"] = time.monotonic() - began
            setting.totals += [phases["total"]] if number else []
            setting.rounds += [phases] if number else []
            bench.results.tell(str(setting), cycle=cycle, round=number, **phases)
            if number >= len(ORDER) - 2:
                checked(bench, setting, which)


@contextmanager
def opened(bench: Bench, setting: Setting) -> Iterator[Any]:
    """A function that pushes."""
    size = setting.mib * MIB
    if setting.stock:
        sender = stock_sender(bench.url)
        yield lambda which: sender.push(bench.named(which), size)
        return
    default = weightwire.plan.STOCK_BUCKET
    weightwire.plan.STOCK_BUCKET = size if setting.whole else default
    options = setting.options if setting.whole or not size else {"bucket_bytes": size, **setting.options}
    try:
        with connect(bench.context, bench.server, bench.model, **options) as session:
            yield lambda which: seconds(session.push(which))
    finally:
        weightwire.plan.STOCK_BUCKET = default


def checked(bench: Bench, setting: Setting, which: str) -> None:
    """Whether the server says what it should, to the last bit or nearly."""
    found, right = said(bench.url), bench.right[which]
    same = found.tokens == right.tokens and apart(found.logprobs, right.logprobs) < SAME
    if not same:
        far = apart(found.logprobs, right.logprobs)
        bench.results.tell(f"{setting}: {which} is not what it should be", ok=False, apart=far)


def verdict(results: Results, every: list[Setting]) -> None:
    """Best and median of each, and ours beside the peer's of the same size."""
    for setting in every:
        if setting.totals:
            best, middle, rounds = min(setting.totals), median(setting.totals), len(setting.totals)
            results.tell(f"{setting}: seconds a round", best=best, median=middle, rounds=rounds)
    for ours in every:
        for peer in every:
            if ours.whole and peer.stock and ours.mib == peer.mib and ours.totals and peer.totals:
                best = min(ours.totals) / min(peer.totals)
                middle = median(ours.totals) / median(peer.totals)
                results.tell("ours beside vLLM's own", ok=middle < 1.0, mib=ours.mib, best=best, median=middle)


if __name__ == "__main__":
    main(f"speed-{sys.argv[3]}", speed)
