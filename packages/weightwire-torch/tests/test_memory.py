"""How much memory a round takes beside the model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from weightwire.messages import PackGeometry
from weightwire_torch.gloo_plane import GlooBroadcaster
from weightwire_torch.ring import Ring

MIB = 1024 * 1024
BUCKET = 4 * MIB


def model() -> list[tuple[str, torch.Tensor]]:
    """96 MiB; the largest tensor has 32."""
    named = [("embed", torch.ones(32 * MIB, dtype=torch.uint8))]
    return named + [(f"layers.{i}.{j}", torch.ones(MIB, dtype=torch.uint8)) for i in range(16) for j in range(4)]


class Allocations(TorchDispatchMode):
    """Adds up the storages that operators return and no argument had."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        known = {t.untyped_storage().data_ptr() for t in args if isinstance(t, torch.Tensor)}
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in known:
                self.nbytes += tensor.untyped_storage().nbytes()
        return out


def test_the_ring_is_the_largest_tensor_and_its_buckets_at_most() -> None:
    named = [("embed", torch.ones(32 * MIB, dtype=torch.uint8)), ("head", torch.ones(32 * MIB, dtype=torch.uint8))]
    from weightwire_torch.manifest import manifest_of  # noqa: PLC0415

    geometry = PackGeometry(packed=True, buffer_bytes=BUCKET, num_buffers=2)
    with Allocations() as allocations:
        Ring.fitting(manifest_of(named).tensors, geometry, slots=3)
    assert 32 * MIB <= allocations.nbytes <= 32 * MIB + 3 * BUCKET


@pytest.mark.parametrize("packed", [True, False])
def test_a_round_allocates_nothing(channel, make_source, packed) -> None:
    source = make_source(model())
    opened = channel(source.manifest(), packed=packed, buffer_bytes=BUCKET).open()
    with Allocations() as allocations:
        opened.send(source)
    assert allocations.nbytes < 64 * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of a process, and lets it be reset")
def test_the_process_grows_by_the_largest_tensor_and_the_ring_at_most(channel, make_source) -> None:
    source = make_source(model())
    opened = channel(source.manifest(), buffer_bytes=BUCKET)
    opened.crew.members(1)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is resident now
    before = resident("VmHWM")
    opened.open()
    opened.send(source)
    grown = resident("VmHWM") - before
    assert grown <= 32 * MIB + (GlooBroadcaster.depth + 1) * BUCKET + 8 * MIB  # threads, sockets, the interpreter


def resident(row: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(row))
