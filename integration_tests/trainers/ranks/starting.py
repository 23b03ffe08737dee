"""How a rank of a plain gloo group begins."""

from __future__ import annotations

import warnings
from datetime import timedelta

import torch
import torch.distributed as dist


def start(*, timeout: timedelta | None = None) -> None:
    """Make this process a quiet rank of one thread, in a gloo group with the others."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", timeout=timeout)
