"""What an adapted layer would be once merged, computed beside the model.

Merging in place and taking it back changes bits: in PEFT 0.21 those of a tenth of the elements of every adapted
weight, in float32 and bfloat16 alike. So PEFT's own ``merge`` runs in a shadow of the layer, on copies of its weights;
what comes out equals ``merge_adapter`` bit for bit, for every kind of adapter that PEFT can merge.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import torch

from weightwire_torch.claims import is_a
from weightwire_torch.peft_layers import tuner_layers
from weightwire_torch.shadow import shadow

_FOUR_BIT = "peft.tuners.lora.bnb:Linear4bit"


def merged(
    layer: torch.nn.Module, whole: Mapping[int, torch.Tensor], base: Sequence[tuple[str, str]]
) -> list[torch.Tensor]:
    """Merge the active adapters of *layer* into copies of its weights.

    Args:
        layer: an adapted layer; it is only read.
        whole: its tensors, gathered, by the ``id`` of what stands for each in *layer*. Buffers that no checkpoint holds
            need not be among them: no framework shards those.
        base: which tensors to return: the path of the module below *layer*, and the name in there.

    Returns:
        New tensors, as many as *base*. Equal to the layer's own where no adapter is active or all are merged already.
    """
    with torch.no_grad():
        twin = shadow(layer, lambda tensor: whole.get(id(tensor), tensor).detach())
        holders = [(twin.get_submodule(path)._parameters, leaf) for path, leaf in base]  # noqa: SLF001 - ours
        for parameters, leaf in holders:
            parameters[leaf] = torch.nn.Parameter(_there(parameters, leaf).clone(), requires_grad=False)
        for tuner in tuner_layers(twin):
            if is_a(tuner, _FOUR_BIT):  # its weights are dequantised by now, so it is a layer as any other
                tuner.__class__ = sys.modules["peft.tuners.lora.layer"].Linear
            if not tuner.disable_adapters and not tuner.merged:
                tuner.merge()
        return [_there(parameters, leaf).detach() for parameters, leaf in holders]


def _there(parameters: Mapping[str, torch.nn.Parameter | None], leaf: str) -> torch.nn.Parameter:
    found = parameters[leaf]
    if found is None:
        raise LookupError(f"The layer no longer has its {leaf!r}.")
    return found
