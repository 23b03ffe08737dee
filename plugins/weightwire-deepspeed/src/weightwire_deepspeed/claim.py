"""Which models are DeepSpeed's. DeepSpeed takes seconds to import, and is not imported here: who has one has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from weightwire_torch.claims import is_a, is_module

if TYPE_CHECKING:
    import torch

CLAIM = 40


def claim_engine(model: object) -> int:
    """Claim engines, and modules whose parameters ZeRO-3 manages, as the Hugging Face Trainer hands them around."""
    if not is_module(model):
        return 0
    parameters = cast("torch.nn.Module", model).parameters()
    managed = is_a(model, "deepspeed.runtime.engine:DeepSpeedEngine") or any(map(is_managed, parameters))
    return CLAIM if managed else 0


def is_managed(tensor: torch.Tensor) -> bool:
    """Whether ZeRO-3 keeps *tensor*, partitioned over the ranks or not at the moment."""
    return hasattr(tensor, "ds_id")
