"""The pump and the gloo plane against one flat gloo broadcast of the same bytes, to one receiver process.

Usage: ``uv run --frozen python tools/bench_pump.py [--buckets MIB …] [--rounds N] [--json]``; exit code 1 when no
bucket size reaches the target. The tensors are the 310 of a Qwen3-0.6B, rows scaled down to 256 MiB. Rounds are
interleaved, so that a busy machine slows both alike, and the ratio is the median over pairs. Run it on a quiet
machine with two cores or more: it is a benchmark, not a test.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import torch
from torch._C._distributed_c10d import PrefixStore
from torch.distributed import BroadcastOptions
from weightwire.deadlines import Deadline
from weightwire.messages import Manifest, PackGeometry, TransferPlan, TransferStats, Window
from weightwire.planes import RankGroup, SingleRank
from weightwire_torch import gloo
from weightwire_torch.broadcasting import Guard, all_well
from weightwire_torch.gloo_group import GlooGroup
from weightwire_torch.gloo_plane import GlooBroadcaster
from weightwire_torch.manifest import manifest_of
from weightwire_torch.pump import Pump
from weightwire_torch.receiver import receive
from weightwire_torch.ring import Ring
from weightwire_torch.shipment import Shipment

TARGET = 0.90
MIB = 1024 * 1024
TIMEOUT = 60.0


@dataclass(frozen=True)
class Result:
    """One bucket size: milliseconds, and how much of the flat broadcast's speed the pump reached."""

    bucket_mib: float
    buffers: int
    flat_ms: float
    pump_ms: float
    ratio: float
    best_flat_ms: float
    best_pump_ms: float
    gather_ms: float
    pack_ms: float
    wire_ms: float
    collectives: int


class Model:
    """A weight source without a model: the tensors, and nothing to gather."""

    lasting = True

    def __init__(self, mib: int) -> None:
        """Make them."""
        self.ranks: RankGroup = SingleRank()
        self._named = [(name, torch.ones(shape, dtype=torch.bfloat16)) for name, shape in scaled_shapes(mib)]
        self._manifest = manifest_of(self._named)

    def manifest(self) -> Manifest:
        """Describe them."""
        return self._manifest

    def gather(self, group: int) -> Sequence[torch.Tensor]:
        """Return them in place, as a plain module's source does."""
        start, stop = self._manifest.groups[group]
        return [tensor for _, tensor in self._named[start:stop]]


def shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors of Qwen3-0.6B, in the module's order; its head is tied."""
    yield "model.embed_tokens.weight", (151936, 1024)
    for layer in range(28):
        prefix = f"model.layers.{layer}"
        for part, shape in {
            "self_attn.q_proj": (2048, 1024),
            "self_attn.k_proj": (1024, 1024),
            "self_attn.v_proj": (1024, 1024),
            "self_attn.o_proj": (1024, 2048),
            "self_attn.q_norm": (128,),
            "self_attn.k_norm": (128,),
            "mlp.gate_proj": (3072, 1024),
            "mlp.up_proj": (3072, 1024),
            "mlp.down_proj": (1024, 3072),
            "input_layernorm": (1024,),
            "post_attention_layernorm": (1024,),
        }.items():
            yield f"{prefix}.{part}.weight", shape
    yield "model.norm.weight", (1024,)


def scaled_shapes(mib: int) -> list[tuple[str, tuple[int, ...]]]:
    """The shapes with fewer rows, so that all tensors together have *mib* MiB in bfloat16."""
    whole = sum(2 * torch.Size(shape).numel() for _, shape in shapes())
    share = mib * MIB / whole
    return [(name, (max(1, round(shape[0] * share)), *shape[1:])) for name, shape in shapes()]


def geometry(bucket_mib: float, buffers: int) -> PackGeometry:
    """Packs of a size."""
    return PackGeometry(packed=True, buffer_bytes=int(bucket_mib * MIB), num_buffers=buffers)


def in_step(group: GlooGroup, step: str, *, receiver: bool) -> None:
    """Let the sender begin when the receiver is there."""
    assert group.store is not None
    if receiver:
        group.store.set(step, "here")
    else:
        group.store.wait([step])
        time.sleep(0.002)  # the receiver posts its buffer


class Flat:
    """What the pump is measured against: a gloo group as torch makes it, and one broadcast of everything."""

    def __init__(self, group: GlooGroup) -> None:
        """Join, beside *group*, with the same members."""
        assert group.store is not None
        keys = PrefixStore("flat", group.store)
        member = gloo.Member(rank=group.rank, world_size=2, timeout=TIMEOUT, prefix="flat")
        one = gloo.devices("", "127.0.0.1")[:1]
        self._group = gloo.enter(keys, member, devices=one, deadline=Deadline.after(TIMEOUT))

    def broadcast(self, flat: torch.Tensor) -> None:
        """Broadcast from rank 0."""
        options = BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        gloo.untyped(self._group).broadcast([flat], options).wait()


def receiver(port: int, options: argparse.Namespace) -> None:
    """The other process: receive what the sender sends, in the same order."""
    group = GlooGroup.connect("127.0.0.1", port, rank=1, world_size=2, timeout=TIMEOUT)
    group.join(Deadline.after(TIMEOUT))
    plain = Flat(group)
    manifest = Model(options.mib).manifest()
    flat = torch.zeros(manifest.nbytes, dtype=torch.uint8)
    rings = {bucket: Ring.fitting(manifest.tensors, geometry(bucket, options.buffers)) for bucket in options.buckets}
    for number in range(options.rounds + 1):
        for bucket, ring in rings.items():
            in_step(group, f"flat {number} {bucket}", receiver=True)
            plain.broadcast(flat)
            in_step(group, f"pump {number} {bucket}", receiver=True)
            for _ in receive(group, manifest.tensors, geometry=geometry(bucket, options.buffers), ring=ring):
                pass
    in_step(group, "done", receiver=True)
    group.close()


def sender(group: GlooGroup, options: argparse.Namespace) -> list[Result]:
    """This process: time both ways, round by round."""
    plain = Flat(group)
    source = Model(options.mib)
    manifest = source.manifest()
    flat = torch.ones(manifest.nbytes, dtype=torch.uint8)
    times: dict[float, list[tuple[float, float]]] = {bucket: [] for bucket in options.buckets}
    last: dict[float, TransferStats] = {}
    pumps = {
        bucket: Pump(
            GlooBroadcaster(group),
            sender_ring(manifest, geometry(bucket, options.buffers)),
        )
        for bucket in options.buckets
    }
    for number in range(options.rounds + 1):
        for bucket, pump in pumps.items():
            in_step(group, f"flat {number} {bucket}", receiver=False)
            began = time.perf_counter()
            plain.broadcast(flat)
            flat_time = time.perf_counter() - began
            in_step(group, f"pump {number} {bucket}", receiver=False)
            began = time.perf_counter()
            last[bucket] = send(pump, source, packs=geometry(bucket, options.buffers))
            if number:  # the first round warms both up
                times[bucket].append((flat_time, time.perf_counter() - began))
    in_step(group, "done", receiver=False)
    return [result(bucket, options.buffers, times=times[bucket], stats=last[bucket]) for bucket in options.buckets]


def sender_ring(manifest: Manifest, packs: PackGeometry) -> Ring:
    """The ring that the gloo plane makes."""
    return Ring.fitting(manifest.tensors, packs, slots=GlooBroadcaster.depth + 1)


def send(pump: Pump, source: Model, *, packs: PackGeometry) -> TransferStats:
    """One round, as the gloo plane sends it."""
    manifest = source.manifest()
    window = Window(0, 0, len(manifest.tensors))
    plan = TransferPlan(round_id="bench", version="0", manifest=manifest, windows=(window,), geometry=packs)
    guard = Guard(Deadline.after(TIMEOUT), all_well)
    return pump.send(Shipment.of(plan, window), source, guard=guard)


def result(bucket: float, buffers: int, *, times: Sequence[tuple[float, float]], stats: TransferStats) -> Result:
    """Sum up the rounds of one bucket size."""
    return Result(
        bucket_mib=bucket,
        buffers=buffers,
        flat_ms=1000 * median(flat for flat, _ in times),
        pump_ms=1000 * median(pump for _, pump in times),
        ratio=median(flat / pump for flat, pump in times),
        best_flat_ms=1000 * min(flat for flat, _ in times),
        best_pump_ms=1000 * min(pump for _, pump in times),
        gather_ms=1000 * stats.gather,
        pack_ms=1000 * stats.pack,
        wire_ms=1000 * stats.wire,
        collectives=stats.collectives,
    )


def bench(options: argparse.Namespace) -> list[Result]:
    """Start the receiver, and measure."""
    group = GlooGroup.host(world_size=2, timeout=TIMEOUT)
    arguments = [arg for arg in sys.argv[1:] if arg != "--json"]
    process = subprocess.Popen([sys.executable, __file__, *arguments, "--receiver", str(group.port)])
    try:
        group.join(Deadline.after(TIMEOUT))
        return sender(group, options)
    finally:
        group.close()
        process.wait(TIMEOUT)


def main() -> int:
    """Print the table, or JSON; 1 when no bucket size reaches the target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--buckets", type=float, nargs="+", default=[16.0, 32.0], help="bucket sizes in MiB")
    parser.add_argument("--buffers", type=int, default=2, help="buckets in the ring")
    parser.add_argument("--rounds", type=int, default=15, help="pairs to measure for each size")
    parser.add_argument("--mib", type=int, default=256, help="what to send, in MiB")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--receiver", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.receiver:
        receiver(options.receiver, options)
        return 0
    results = bench(options)
    if options.json:
        print(json.dumps([asdict(row) for row in results]))
    else:
        columns = list(asdict(results[0]))
        print("".join(f"{name:>13}" for name in columns))
        for row in results:
            print("".join(f"{value:>13.2f}" for value in asdict(row).values()))
    return int(max(row.ratio for row in results) < TARGET)


if __name__ == "__main__":
    sys.exit(main())
