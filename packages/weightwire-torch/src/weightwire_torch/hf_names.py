"""The checkpoint names of transformers' models, learned from transformers itself.

Since Transformers 5 a module's tensors may have other names than its checkpoint's, and other shapes: experts are
packed, vision towers renamed, projections fused or permuted. ``save_pretrained`` turns them back with the table of
conversions that the model was loaded with; so do we. Transformers is never imported here: where a model is one of its
own, it was.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Protocol, cast

import torch
from weightwire.errors import ManifestError

from weightwire_torch.claims import is_a
from weightwire_torch.experts import Convert
from weightwire_torch.shadow import Replace, shadow

_LOADING = "transformers.core_model_loading"


_Revert = Callable[[torch.nn.Module, dict[str, torch.Tensor]], dict[str, torch.Tensor]]


class _Model(Protocol):
    _checkpoint_conversion_mapping: Mapping[str, str]
    _keys_to_ignore_on_save: list[str] | None


def is_pretrained(model: torch.nn.Module) -> bool:
    """Whether *model*, without wrappers, is one of transformers."""
    return is_a(model, "transformers.modeling_utils:PreTrainedModel")


def left_out(model: torch.nn.Module) -> list[str]:
    """Names that ``save_pretrained`` leaves out of the checkpoint of *model*."""
    return list(cast("_Model", model)._keys_to_ignore_on_save or ()) if is_pretrained(model) else []  # noqa: SLF001


def converter(model: torch.nn.Module, form: Replace) -> Convert:
    """What turns tensors of *model* into those of its checkpoint.

    Args:
        model: without wrappers. Models that are not transformers' are their checkpoints.
        form: gives the full shape of one of its tensors, on meta.
    """
    if not is_pretrained(model):
        return _unchanged
    loading = sys.modules.get(_LOADING)
    if loading is None or not hasattr(loading, "revert_weight_conversion"):
        return _renaming(cast("_Model", model)._checkpoint_conversion_mapping or {})  # noqa: SLF001 - Transformers 4
    return _reverting(loading, shadow(model, form))


def _unchanged(tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    return tensors


def _reverting(loading: ModuleType, outline: torch.nn.Module) -> Convert:
    """Transformers 5: its own way back, asked about the outline of a model, which has the classes' own names."""
    revert = cast("_Revert", loading.revert_weight_conversion)

    def convert(tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        try:
            return revert(outline, dict(tensors))
        except Exception as error:
            raise ManifestError(
                f"Transformers can't say what a checkpoint makes of {next(iter(tensors))!r}: "
                f"{type(error).__name__}: {error}",
                hint="try a newer transformers; `model.save_pretrained(...)` should fail likewise",
            ) from error

    return convert


def _renaming(mapping: Mapping[str, str]) -> Convert:
    """Transformers 4.52 to 4.57: patterns from the checkpoint's names to the module's, turned round as it does."""
    back = [(new.lstrip("^"), re.sub(r"\(.*\)", "", old.lstrip("^"))) for old, new in mapping.items()]

    def rename(name: str) -> str:
        for new, old in back:
            renamed, count = re.subn(f"^{new}", old, name)
            if count:
                return renamed
        return name

    return lambda tensors: {rename(name): tensor for name, tensor in tensors.items()}
