"""Every rank of TRL's AsyncGRPOTrainer: per set-up three steps, then what the engine says and what it should.

Sharded if the environment says so (ACCELERATE_USE_FSDP), otherwise alone or in DDP. A push that fails ends a rank as it
ends a user's: with the error, once it was written down.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import torch.distributed as dist
import words
from peft import LoraConfig
from saying import whole
from torch.distributed.tensor import DTensor
from trl_on_cpu import async_grpo
from trl_rounds import really_shard, served
from weightwire_torch import sources
from weightwire_trl import WeightTransfer

SHARDED = os.environ.get("ACCELERATE_USE_FSDP") == "true"


def lora() -> LoraConfig:
    return LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)


SETUPS = {
    "bound": {},
    "unbound": {"bind": False},
    "lora": {"peft_config": lora},
    "frozen": {"freeze": True},
}


def settle(arguments: object) -> None:
    if SHARDED:
        really_shard(arguments)


def trainer_of(setup: str, given: argparse.Namespace) -> object:
    chosen = SETUPS[setup]
    transfer = WeightTransfer(given.url, given.options)
    more = {"peft_config": chosen["peft_config"]()} if "peft_config" in chosen else {}
    trainer = async_grpo(given.checkpoint, given.out / "trl", transfer, settle=settle, **more)
    if chosen.get("freeze"):
        trainer.model.get_input_embeddings().requires_grad_(False)
    if chosen.get("bind", True):
        transfer.bind(trainer)
    return trainer


def weights(trainer: object, given: argparse.Namespace, setup: str) -> dict:
    """The trainer's weights, whole; adapters merged by PEFT, in a plain model of its own."""
    if "peft_config" not in SETUPS[setup]:
        return whole(trainer.accelerator.unwrap_model(trainer.model))
    adapted = {n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in trainer.model.named_parameters()}
    from peft import get_peft_model  # noqa: PLC0415 - beside its use
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - likewise

    plain = get_peft_model(AutoModelForCausalLM.from_pretrained(given.checkpoint, dtype="float32"), lora())
    plain.load_state_dict({name: p.detach() for name, p in adapted.items()}, strict=True)
    return whole(plain)


def run(setup: str, given: argparse.Namespace) -> dict[str, object]:
    trainer = trainer_of(setup, given)
    frozen = {n: p.detach().clone() for n, p in trainer.model.named_parameters() if not p.requires_grad}
    trainer.train()
    sharded = any(isinstance(p, DTensor) for p in trainer.model.parameters())
    assert sharded == SHARDED
    trained = weights(trainer, given, setup)
    said: dict[str, object] = {"sharded": sharded, "steps": trainer.state.global_step}
    if not sharded:
        said["frozen_kept"] = all(p.equal(frozen[n]) for n, p in trainer.model.named_parameters() if n in frozen)
    return said | served(trainer, trained, given)


def raise_in_second_push(group: int) -> None:
    """The source raises, behind a gather, as on an out-of-memory."""
    original: Callable = sources.ModuleSource.gather
    pushes = 0

    def gather(self: object, index: int) -> object:
        nonlocal pushes
        pushes += index == 0
        gathered = original(self, index)
        if pushes > 1 and index == group:
            raise RuntimeError("told to")
        return gathered

    sources.ModuleSource.gather = gather


def main() -> None:
    parser = words.parser()
    parser.add_argument("--victim", type=int, default=-1, help="the rank whose source raises")
    parser.add_argument("setups", nargs="+")
    given = parser.parse_args()
    if words.rank() == given.victim:
        raise_in_second_push(1)
    for setup in given.setups:
        began = time.monotonic()
        try:
            said = run(setup, given)
        except Exception as error:
            said = {"error": type(error).__name__, "text": str(error), "seconds": time.monotonic() - began}
            raise
        finally:
            words.say(given.out, setup, said)
    if dist.is_initialized():
        dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
