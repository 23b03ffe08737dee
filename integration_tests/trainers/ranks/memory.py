"""Every rank of a trainer: the memory that a push takes beside the model, as the system counts it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import starting
import torch
import weightwire
import words
from setups import make
from weightwire import negotiate
from weightwire.options import Options
from weightwire.tensors import Manifest


def resident(field: str) -> int:
    """Bytes: ``VmRSS`` now, ``VmHWM`` at most since :func:`forget`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def forget() -> None:
    """Let the highest count begin anew (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


def largest_group(manifest: Manifest) -> int:
    return max(sum(meta.nbytes for meta in manifest.tensors[start:stop]) for start, stop in manifest.groups)


def peak(act: Callable[[], object]) -> int:
    """Bytes that the process grew by, at most, while it did that."""
    forget()
    before = resident("VmRSS")
    act()
    return resident("VmHWM") - before


def gather_embedding(model: torch.nn.Module) -> None:
    """Make the largest tensor whole by the framework's own means, and let go of it."""
    tensor = max(model.parameters(), key=lambda parameter: getattr(parameter, "ds_numel", parameter.numel()))
    if hasattr(tensor, "ds_id"):
        from deepspeed.runtime.zero import GatheredParameters  # noqa: PLC0415 - takes seconds

        with GatheredParameters([tensor], modifier_rank=None):
            pass
    elif hasattr(tensor, "full_tensor"):
        tensor.full_tensor()


def main() -> None:
    parser = words.parser()
    parser.add_argument("setups", nargs="+")
    given = parser.parse_args()
    starting.start()
    for setup in given.setups:
        trainer = make(setup, given.checkpoint)
        source = negotiate.weight_source(weightwire.plugins().registry, trainer.model, Options())
        with weightwire.connect(given.url, source, given.options) as session:
            session.push(version="warm")
            extra = peak(lambda: session.push(version="measured"))
        # The most of several: gloo's threads free a collective's memory a little late, so that some begin with it.
        own = max(peak(partial(gather_embedding, trainer.model)) for _ in range(8))
        manifest = source.manifest()
        found = {"extra": extra, "own": own, "largest_group": largest_group(manifest), "model": manifest.nbytes}
        words.say(given.out, setup, found)
    os._exit(0)


if __name__ == "__main__":
    main()
