"""What the wire gives: flat broadcasts from GPU 0 to GPU 1 through our communicator, and through torch's.

``python exp_raw.py CONTEXT.json``; it starts itself again for the other end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from gpu_context import Context, Results, main
from weightwire.deadlines import Deadline
from weightwire_torch.broadcasting import Guard, all_well
from weightwire_torch.nccl_communicator import Communicator, wait_until
from weightwire_torch.nccl_plane import open_transport

MIB = 1 << 20
SIZES = (2 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB)
WARM, TIMES = 3, 10
QUEUED = 8  # broadcasts in a row with one wait at the end: what a stream of packs can reach
LONG = 90.0


class Ours:
    """Broadcasts as the plane does them: one after the other on the wire's stream, polled."""

    def __init__(self, rank: int, store: dist.TCPStore) -> None:
        """Join."""
        self.transport = open_transport("")
        self._guard = Guard(Deadline.after(LONG), all_well)
        if rank == 0:
            store.set("id", self.transport.nccl.unique_id())
        self._inside = Communicator.enter(self.transport.nccl, store.get("id"), rank=rank, world_size=2)
        self._inside.settle(self._guard, "joining")

    def begin(self, flat: torch.Tensor) -> None:
        """Queue one."""
        self._inside.broadcast(flat.data_ptr(), flat.numel(), stream=self.transport.device.wire)
        self._inside.settle(self._guard, "queueing")

    def land(self) -> None:
        """Wait for all that were queued."""
        wait_until(self.transport.device.mark_wire().passed, lambda: self._guard.check("sending"))

    def leave(self) -> None:
        """In order."""
        self._inside.close(Deadline.after(5.0))


def raw(context: Context, results: Results) -> None:
    """Both ends run the same broadcasts; rank 0 tells."""
    if not context.cuda:
        results.tell("there is no GPU: not run")
        return
    rank = int(os.environ.get("RAW_RANK", "0"))
    torch.cuda.set_device(rank)
    store = dist.TCPStore("127.0.0.1", int(os.environ.get("RAW_PORT", "0")), 2, rank == 0, wait_for_workers=False)
    other = start_other(store.port) if rank == 0 else None
    dist.init_process_group("nccl", store=dist.PrefixStore("torch", store), rank=rank, world_size=2)
    ours = Ours(rank, store)
    for size in SIZES:
        times = measured(ours, torch.empty(size, dtype=torch.uint8, device="cuda"))
        if rank == 0:
            tell(results, size, times)
    ours.leave()
    dist.destroy_process_group()
    if other is not None:
        results.tell("the other end", ok=other.wait(timeout=30.0) == 0)


def measured(ours: Ours, flat: torch.Tensor) -> dict[str, list[float]]:
    """Seconds for each broadcast, three ways."""

    def one() -> None:
        ours.begin(flat)
        ours.land()

    def torchs() -> None:
        dist.broadcast(flat, 0)
        torch.cuda.synchronize()

    def many() -> None:
        for _ in range(QUEUED):
            ours.begin(flat)
        ours.land()

    ways = {"ours": one, "torch": torchs, "ours_queued": many}
    times = {name: [timed(way) for _ in range(WARM + TIMES)] for name, way in ways.items()}
    times["ours_queued"] = [seconds / QUEUED for seconds in times["ours_queued"]]
    return times


def timed(work: Callable[[], Any]) -> float:
    """Seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def tell(results: Results, size: int, times: dict[str, list[float]]) -> None:
    """Medians, as gigabytes a second."""
    rates = {name: size / median(values[WARM:]) / 1e9 for name, values in times.items()}
    results.tell("flat broadcast, GB/s", mib=size // MIB, **rates)


def start_other(port: int) -> subprocess.Popen[bytes]:
    """Rank 1."""
    environment = os.environ | {"RAW_RANK": "1", "RAW_PORT": str(port)}
    return subprocess.Popen([sys.executable, *sys.argv], env=environment)


if __name__ == "__main__":
    main("raw", raw)
