"""The trainers that run on DeepSpeed. Imported only where one of them is asked for: it takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import deepspeed
import deepspeed.ops
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin
from models import batch, load
from setups import Trainer, Weights

deepspeed.ops.__compatible_ops__ = {}  # else a shared-memory collective is compiled on first use, for minutes


def config(stage: int, *, offload: bool = False, bf16: bool = False) -> dict[str, object]:
    """A configuration in which every parameter is partitioned and nothing is clipped."""
    zero: dict[str, object] = {"stage": stage, "stage3_param_persistence_threshold": 0, "overlap_comm": False}
    host = {"device": "cpu", "pin_memory": False}
    zero |= {"offload_optimizer": host, "offload_param": host} if offload else {}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 0.0,  # 1.0 by default
        "bf16": {"enabled": bf16},
    }


def whole(engine: torch.nn.Module) -> Weights:
    """Every parameter gathered by itself."""
    found: Weights = {}
    for name, parameter in engine.module.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=None):
            found[name] = parameter.detach().clone()
    return found


class EngineLoop:
    """DeepSpeed's own training loop."""

    def __init__(self, engine: deepspeed.DeepSpeedEngine) -> None:
        self.model = engine

    def step(self, number: int) -> None:
        ids = batch(number, dist.get_rank())
        self.model.backward(self.model(input_ids=ids, labels=ids).loss)
        self.model.step()

    def weights(self) -> Weights:
        return whole(self.model)


def zero(checkpoint: Path, *, stage: int, offload: bool = False, bf16: bool = False) -> Trainer:
    model = load(checkpoint)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    how = config(stage, offload=offload, bf16=bf16)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=how)
    return EngineLoop(engine)


class ModuleOnly:
    """The module that ZeRO-3 manages, as the Hugging Face Trainer hands it to callbacks."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.model = trainer.model.module
        self.step = trainer.step
        self.weights = trainer.weights


def zero3_module(checkpoint: Path) -> Trainer:
    return ModuleOnly(zero(checkpoint, stage=3))


class AccelerateLoop:
    """A loop over what Accelerate prepared."""

    def __init__(self, accelerator: Accelerator, model: torch.nn.Module) -> None:
        self.model, self._optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
        self._accelerator = accelerator

    def step(self, number: int) -> None:
        ids = batch(number, dist.get_rank())
        self._accelerator.backward(self.model(input_ids=ids, labels=ids).loss)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def weights(self) -> Weights:
        return whole(self.model)


def zero3_accelerate(checkpoint: Path) -> Trainer:
    plugin = DeepSpeedPlugin(hf_ds_config=config(3))
    return AccelerateLoop(Accelerator(cpu=True, deepspeed_plugin=plugin), load(checkpoint))


SETUPS: dict[str, Callable[[Path], Trainer]] = {
    **{f"zero{stage}": partial(zero, stage=stage) for stage in range(4)},
    "zero3_offloaded": partial(zero, stage=3, offload=True),
    "zero3_bf16": partial(zero, stage=3, bf16=True),
    "zero3_module": zero3_module,
    "zero3_accelerate": zero3_accelerate,
}
