"""Which models are sharded. Imports neither FSDP nor DTensor, which cost half a second: who has one has imported it."""

from __future__ import annotations

import torch
from weightwire_torch.manifest import is_dtensor
from weightwire_torch.wrappers import is_a

CLAIM = 30


def claim_sharded(model: object) -> int:
    """Claim modules that ``fully_shard`` wrapped, and others that hold a DTensor (tensor parallelism)."""
    if not isinstance(model, torch.nn.Module):
        return 0
    wrapped = any(is_a(module, "torch.distributed.fsdp:FSDPModule") for module in model.modules())
    return CLAIM if wrapped or any(is_dtensor(parameter) for parameter in model.parameters()) else 0
