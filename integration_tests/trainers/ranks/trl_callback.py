"""Every rank of a trainer of TRL's with the callback: three steps, then what the engine says and what it should.

What shards the model is named first (``ddp``, ``fsdp2``, ``zero3``): it is set for the whole process.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch.distributed as dist
import trl
import words
from datasets import Dataset
from trl_on_cpu import PROMPTS, reward, tokenizer
from trl_rounds import really_shard, served
from weightwire_trl import WeightTransferCallback

ZERO3 = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, "overlap_comm": False},
    "zero_allow_untested_optimizer": True,
    "bf16": {"enabled": False},
}


def settings(how: str, out: Path) -> dict[str, object]:
    if how == "zero3":
        import deepspeed  # noqa: PLC0415 - takes seconds, and this one set-up has it
        import deepspeed.ops  # noqa: PLC0415 - likewise

        deepspeed.ops.__compatible_ops__ = {}  # or it compiles one
    return {
        "output_dir": str(out / how), "max_steps": 3, "per_device_train_batch_size": 4, "report_to": [],
        "save_strategy": "no", "bf16": False, "use_cpu": True, "logging_steps": 1, "learning_rate": 1e-2,
        "gradient_checkpointing": False, "model_init_kwargs": {"dtype": "float32"},
        **({"deepspeed": ZERO3} if how == "zero3" else {}),
    }  # fmt: skip


def settle(arguments: object, how: str) -> object:
    if how == "fsdp2":
        really_shard(arguments)
    return arguments


def sft(how: str, given: argparse.Namespace) -> object:
    arguments = settle(trl.SFTConfig(max_length=32, **settings(how, given.out)), how)
    rows = Dataset.from_dict({"text": [f"{text} and so on, and on, and on" for text in PROMPTS] * 8})
    return trl.SFTTrainer(model=str(given.checkpoint), args=arguments, train_dataset=rows, processing_class=tokenizer())


def grpo(how: str, given: argparse.Namespace) -> object:
    more = {"num_generations": 4, "max_completion_length": 8, "use_vllm": False}
    arguments = settle(trl.GRPOConfig(**more, **settings(how, given.out)), how)
    rows = Dataset.from_dict({"prompt": list(PROMPTS) * 8})
    return trl.GRPOTrainer(
        model=str(given.checkpoint), reward_funcs=reward, args=arguments, train_dataset=rows,
        processing_class=tokenizer(),
    )  # fmt: skip


def whole_of(parameter: object) -> object:
    """By the framework's own means."""
    if hasattr(parameter, "ds_id"):
        from deepspeed.runtime.zero import GatheredParameters  # noqa: PLC0415 - whoever has one has DeepSpeed

        with GatheredParameters([parameter], modifier_rank=None):
            return parameter.detach().clone()
    return getattr(parameter, "full_tensor", lambda: parameter)().detach()


def run(kind: str, how: str, given: argparse.Namespace) -> dict[str, object]:
    trainer = {"sft": sft, "grpo": grpo}[kind](how, given)
    callback = WeightTransferCallback(trainer, given.url, given.options)
    trainer.add_callback(callback)
    trainer.train()
    model = trainer.accelerator.unwrap_model(trainer.model)
    kinds = {"fsdp2": "DTensor", "zero3": "ds_id"}
    marks = {type(p).__name__ for p in model.parameters()} | {m for p in model.parameters() for m in vars(p)}
    assert how == "ddp" or kinds[how] in marks, marks
    trained = {name: whole_of(p) for name, p in model.named_parameters()}
    unset_zero3()
    said = {"steps": trainer.state.global_step, "version": callback.receipt.version}
    return said | served(trainer, trained, given)


def unset_zero3() -> None:
    """Or what transformers loads from here on is partitioned as well."""
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config  # noqa: PLC0415 - beside its use

    unset_hf_deepspeed_config()


def main() -> None:
    parser = words.parser()
    parser.add_argument("how", choices=["ddp", "fsdp2", "zero3"])
    parser.add_argument("kinds", nargs="+")
    given = parser.parse_args()
    for kind in given.kinds:
        words.say(given.out, kind, run(kind, given.how, given))
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
