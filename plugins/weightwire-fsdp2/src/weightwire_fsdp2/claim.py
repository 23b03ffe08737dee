"""Which models are sharded. Imports neither torch nor what of it shards: who has such a model has imported it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from weightwire_torch.claims import is_a, is_module

if TYPE_CHECKING:
    import torch

CLAIM = 30


def claim_sharded(model: object) -> int:
    """Claim modules that ``fully_shard`` wrapped, and others that hold a DTensor (tensor parallelism)."""
    if not is_module(model):
        return 0
    whole = cast("torch.nn.Module", model)
    wrapped = any(is_a(module, "torch.distributed.fsdp:FSDPModule") for module in whole.modules())
    sharded = any(is_a(parameter, "torch.distributed.tensor:DTensor") for parameter in whole.parameters())
    return CLAIM if wrapped or sharded else 0
