"""Weights that are stored in another form than they are used in."""

from __future__ import annotations

import sys
from typing import Protocol, cast

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from weightwire.errors import ManifestError

from weightwire_torch.claims import is_a
from weightwire_torch.slots import Slot

_FOUR_BIT = "bitsandbytes.nn.modules:Params4bit"
_FOUR_BIT_LAYER = "bitsandbytes.nn.modules:Linear4bit"
_EIGHT_BIT = "bitsandbytes.nn.modules:Int8Params"


class _State(Protocol):
    shape: torch.Size
    dtype: torch.dtype


class _FourBit(Protocol):
    data: torch.Tensor
    quant_state: _State | None


def is_four_bit(tensor: torch.Tensor) -> bool:
    """Whether *tensor* is a 4-bit weight of bitsandbytes (QLoRA), packed into bytes."""
    return is_a(tensor, _FOUR_BIT)


def form_of(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    """Shape and dtype of a 4-bit weight as it is used: as it was before it was quantised."""
    state = cast("_FourBit", tensor).quant_state
    if state is None:
        return tensor.shape, tensor.dtype  # not quantised yet: that happens when it is moved to its device
    return state.shape, state.dtype


def dequantised(tensor: torch.Tensor) -> torch.Tensor:
    """A 4-bit weight as the trainer's own forward uses it. A new tensor, where it was quantised."""
    weight = cast("_FourBit", tensor)
    if weight.quant_state is None:
        return tensor.detach()
    functional = sys.modules["bitsandbytes.functional"]
    return cast("torch.Tensor", functional.dequantize_4bit(weight.data, weight.quant_state)).detach()


def refuse_unreadable(slot: Slot) -> None:
    """Refuse weights whose values can't be had from here.

    Raises:
        ManifestError: 8-bit weights, sharded 4-bit weights, tensors of a quantisation library; names the tensor.
    """
    tensor = slot.tensor
    why = ""
    if is_a(tensor, _EIGHT_BIT):
        why = "is an 8-bit weight of bitsandbytes"
    elif is_a(slot.owner, _FOUR_BIT_LAYER) and slot.leaf == "weight" and _is_sharded(tensor):
        why = "is a 4-bit weight of bitsandbytes that is sharded"
    elif is_traceable_wrapper_subclass(tensor) and not is_a(tensor, "torch.distributed.tensor:DTensor"):
        why = f"is a {type(tensor).__name__}, whose values are stored in another form"
    if why:
        raise ManifestError(
            f"The tensor {slot.name!r} {why}; what the server should hold can't be told from it.",
            hint="train on unquantised weights, or with 4-bit weights (QLoRA) on unsharded ranks",
        )


def _is_sharded(tensor: torch.Tensor) -> bool:
    return not is_four_bit(tensor) or hasattr(tensor, "ds_id")
