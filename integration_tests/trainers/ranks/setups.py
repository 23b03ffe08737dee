"""The trainers of these tests: how a model is wrapped, trained by a step, and gathered by the framework's own means."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from models import batch, load
from peft import LoraConfig, get_peft_model
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

Weights = dict[str, torch.Tensor]


class Trainer(Protocol):
    """One set-up.

    Attributes:
        model: what a user hands to ``weightwire.connect``.
    """

    model: torch.nn.Module

    def step(self, number: int) -> None:
        """Train by one step."""

    def weights(self) -> Weights:
        """All weights, whole, under their checkpoint names, without Weightwire."""


class Loop:
    """A plain training loop."""

    def __init__(self, model: torch.nn.Module, whole: Callable[[torch.nn.Module], Weights]) -> None:
        self.model = model
        self._whole = whole
        self._optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)

    def step(self, number: int) -> None:
        ids = batch(number, dist.get_rank())
        self.model(input_ids=ids, labels=ids).loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def weights(self) -> Weights:
        return self._whole(self.model)


def full_tensors(model: torch.nn.Module) -> Weights:
    """All parameters of a sharded model, whole."""
    return {name: parameter.full_tensor().detach() for name, parameter in model.named_parameters()}


def _sharded(model: torch.nn.Module, mesh: DeviceMesh | None = None, **how: object) -> torch.nn.Module:
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, **how)
    return fully_shard(model, mesh=mesh, **how)


def fsdp2(checkpoint: Path) -> Trainer:
    return Loop(_sharded(load(checkpoint)), full_tensors)


def hsdp(checkpoint: Path) -> Trainer:
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicas", "shards"))
    return Loop(_sharded(load(checkpoint), mesh), full_tensors)


def fsdp2_offloaded(checkpoint: Path) -> Trainer:
    return Loop(_sharded(load(checkpoint), offload_policy=CPUOffloadPolicy(pin_memory=False)), full_tensors)


def fsdp2_mixed(checkpoint: Path) -> Trainer:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return Loop(_sharded(load(checkpoint), mp_policy=policy), full_tensors)


def fsdp2_lora(checkpoint: Path) -> Trainer:
    """Adapters in a sharded model. What they come to is asked of a plain copy, which PEFT merges in place."""
    config = LoraConfig(r=4, target_modules="all-linear", exclude_modules=["lm_head"], init_lora_weights=False)

    def adapted() -> torch.nn.Module:
        torch.manual_seed(3)
        return get_peft_model(load(checkpoint), config)

    model = adapted()
    for layer in model.base_model.model.model.layers:
        fully_shard(layer)
    fully_shard(model)

    def merged(sharded: torch.nn.Module) -> Weights:
        plain = adapted()
        plain.load_state_dict(full_tensors(sharded), strict=True)
        return dict(plain.merge_and_unload().state_dict())

    return Loop(model, merged)


def ddp(checkpoint: Path) -> Trainer:
    return Loop(DistributedDataParallel(load(checkpoint)), lambda model: dict(model.module.state_dict()))


def lora(checkpoint: Path) -> Trainer:
    """Adapters in a plain model."""
    torch.manual_seed(3)
    config = LoraConfig(r=4, target_modules="all-linear", exclude_modules=["lm_head"], init_lora_weights=False)
    model = get_peft_model(load(checkpoint), config)

    def merged(adapted: torch.nn.Module) -> Weights:
        copied: torch.nn.Module = copy.deepcopy(adapted)
        return dict(copied.merge_and_unload().state_dict())

    return Loop(model, merged)


SETUPS: dict[str, Callable[[Path], Trainer]] = {
    make.__name__: make for make in (fsdp2, hsdp, fsdp2_offloaded, fsdp2_mixed, fsdp2_lora, lora, ddp)
}


def make(setup: str, checkpoint: Path) -> Trainer:
    """The trainer of that name."""
    if setup in SETUPS:
        return SETUPS[setup](checkpoint)
    import deepspeed_setups  # noqa: PLC0415 - takes seconds

    return deepspeed_setups.SETUPS[setup](checkpoint)
