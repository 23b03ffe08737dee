"""Sharded trainers, world of one: what they gather arrives, though its storage is poisoned once it may be.

``python exp_sources.py CONTEXT.json fsdp2|zero3|zero3-offload SERVER``
"""

from __future__ import annotations

import copy
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import weightwire
from gpu_context import Context, Results, main
from gpu_models import off, small_model
from gpu_sessions import CLOSE, connect, poison
from weightwire.messages import Manifest
from weightwire.planes import RankGroup, SingleRank
from weightwire_torch.manifest import manifest_of

Gather = Callable[[list[str]], list[torch.Tensor]]


class Gathered:
    """A weight source over a function that gathers; what it gave is poisoned at the next call, when that is allowed."""

    def __init__(self, manifest: Manifest, gather: Gather, trainer: object) -> None:
        """Own the function.

        Args:
            manifest: what it gathers.
            gather: gathers tensors by their names.
            trainer: what an adapter would be given.
        """
        self.trainer = trainer
        self.ranks: RankGroup = SingleRank()
        self._manifest = manifest
        self._gather = gather
        self._given: list[torch.Tensor] = []

    def manifest(self) -> Manifest:
        """Names, dtypes, shapes."""
        return self._manifest

    def gather(self, group: int) -> Sequence[torch.Tensor]:
        """One group."""
        poison(self._given)
        start, stop = self._manifest.groups[group]
        self._given = self._gather(list(self._manifest.names[start:stop]))
        return self._given


def fsdp2(model: Any, device: str) -> Gathered:
    """Every layer sharded by ``fully_shard``."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    manifest = manifest_of(list(model.named_parameters()))
    mesh = init_device_mesh(device, (1,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)

    def gather(names: list[str]) -> list[torch.Tensor]:
        parameters = dict(model.named_parameters())
        return [parameters[name].full_tensor().detach().clone() for name in names]

    return Gathered(manifest, gather, model)


def zero3(model: Any, *, offload: bool) -> Gathered:
    """A DeepSpeed engine with ZeRO stage 3, its parameters on the GPU or on the host."""
    import deepspeed  # noqa: PLC0415

    manifest = manifest_of([(name, tensor.detach()) for name, tensor in model.named_parameters()])
    stage = {"stage": 3, "stage3_param_persistence_threshold": 0}
    stage |= {"offload_param": {"device": "cpu", "pin_memory": False}} if offload else {}
    settings = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": stage}
    engine, *_ = deepspeed.initialize(model=model, config=settings)
    parameters = dict(engine.module.named_parameters())

    def gather(names: list[str]) -> list[torch.Tensor]:
        with deepspeed.zero.GatheredParameters([parameters[name] for name in names]):
            return [parameters[name].detach().clone() for name in names]

    return Gathered(manifest, gather, engine)


def sources(context: Context, results: Results) -> None:
    """Gather, send, compare."""
    kind = sys.argv[2]
    if kind != "fsdp2" and importlib.util.find_spec("deepspeed") is None:
        results.tell("DeepSpeed is not importable here: not run", kind=kind)
        return
    process_group(context)
    model = small_model(3, context.device)
    right = copy.deepcopy(model)
    source = fsdp2(model, context.device) if kind == "fsdp2" else zero3(model, offload=kind.endswith("offload"))
    trainers = {"a few lines": source}
    adapter = "fsdp2" if kind == "fsdp2" else "deepspeed"
    if adapter in weightwire.plugins().registry.weight_sources:
        trainers["the adapter"] = source.trainer
    for by, trainer in trainers.items():
        for packed in (True, False):
            with results.step(f"{kind} by {by}, packed={packed}"):
                arrives(context, results, trainer, what=f"{kind} by {by}", right=right, packed=packed)
    dist.destroy_process_group()


def arrives(context: Context, results: Results, trainer: object, *, what: str, right: Any, packed: bool) -> None:
    """Push twice: the second round gathers what the first one poisoned around."""
    server = sys.argv[3]
    with connect(context, server, trainer, packed=packed) as session:
        session.push(f"{what}-{packed}")
        receipt = session.push(f"{what}-{packed}-again")
        found = off(context.servers[server].url, right)
        results.tell(f"{what}, packed={packed}", ok=found < CLOSE, apart=found, gather=receipt.stats.gather)


def process_group(context: Context) -> None:
    """A world of one, with a store in its own memory."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    backend = "nccl" if context.cuda else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


if __name__ == "__main__":
    main(f"sources-{sys.argv[2]}", sources)
