"""Seeing through wrappers, from what a trainer holds to the module that its checkpoint is written from."""

from __future__ import annotations

import sys

import torch
from weightwire.errors import ManifestError

from weightwire_torch.claims import is_a

ONLY_CHILDREN = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""What the wrappers of :data:`weightwire_torch.names.WRAPPERS` call the one module in them."""


_FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel:FullyShardedDataParallel"


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """The module inside all wrappers: DDP, FSDP1, ``torch.compile``, DeepSpeed, activation checkpointing, PEFT."""
    current: torch.nn.Module | None = model
    while current is not None:
        model, current = current, _inside(current)
    return model


def refuse_flattened(model: torch.nn.Module) -> None:
    """Refuse what FSDP1 sharded: its parameters are pieces of a flat one, under the names of whole ones.

    Raises:
        ManifestError: says what to use instead.
    """
    for name, module in model.named_modules():
        if is_a(module, _FSDP1) and getattr(module, "sharding_strategy", None) is not _unsharded_strategy():
            raise ManifestError(
                f"The module {name or type(model).__name__!r} is sharded by FSDP1 (FullyShardedDataParallel).",
                hint="wrap the model with fully_shard (FSDP2), and pip install weightwire-fsdp2",
            )


def _unsharded_strategy() -> object:
    return sys.modules[_FSDP1.partition(":")[0]].ShardingStrategy.NO_SHARD


def _inside(module: torch.nn.Module) -> torch.nn.Module | None:
    children = _children(module)
    if is_a(module, "peft.peft_model:PeftModel"):
        adapted = children["base_model"]  # a tuner, or the model itself where only prompts are learned
        return _children(adapted)["model"] if is_a(adapted, "peft.tuners.tuners_utils:BaseTuner") else adapted
    (name, *others) = children or ("",)
    return children[name] if not others and name in ONLY_CHILDREN else None


def _children(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    return {name: child for name, child in module._modules.items() if child is not None}  # noqa: SLF001
