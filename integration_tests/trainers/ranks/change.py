"""Every rank of a trainer whose model is changed between pushes, on all ranks or on one; what each push comes to."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import starting
import torch
import torch.distributed as dist
import weightwire
import words
from fail import attempt
from models import PROMPT, load, scores
from peft import LoraConfig, get_peft_model
from push_twice import distance
from setups import Loop, Trainer, Weights, full_tensors, make
from torch.distributed.fsdp import FSDPModule, fully_shard
from weightwire_testing.sampling import score


def two_adapters(checkpoint: Path) -> torch.nn.Module:
    """Each with a head of its own. The same on every rank, and every time."""
    torch.manual_seed(3)
    how = {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"], "init_lora_weights": False}
    model = get_peft_model(load(checkpoint), LoraConfig(**how))
    model.add_adapter("b", LoraConfig(**how))
    with torch.no_grad():
        model.base_model.model.lm_head.modules_to_save["b"].weight.mul_(2.0)
    return model


def fsdp2_adapters(checkpoint: Path) -> Trainer:
    model = two_adapters(checkpoint)
    for layer in model.base_model.model.model.layers:
        fully_shard(layer)
    fully_shard(model)

    def merged(sharded: torch.nn.Module) -> Weights:
        plain = two_adapters(checkpoint)
        plain.load_state_dict(full_tensors(sharded), strict=True)
        plain.set_adapter(sharded.active_adapter)
        return dict(plain.merge_and_unload().state_dict())

    return Loop(model, merged)


def new_head(model: torch.nn.Module) -> None:
    """Another layer of the same shape, sharded as the old one was."""
    torch.manual_seed(4)
    inner = getattr(model, "module", model)
    rows, columns = inner.lm_head.weight.shape
    head = torch.nn.Linear(columns, rows, bias=False)
    inner.lm_head = fully_shard(head) if isinstance(inner, FSDPModule) else head


def shorter(model: torch.nn.Module) -> None:
    """A layer less: other names."""
    inner = getattr(model, "module", model).model
    inner.layers = torch.nn.ModuleList(list(inner.layers)[:-1])


def default(model: torch.nn.Module) -> None:
    model.set_adapter("default")


def other(model: torch.nn.Module) -> None:
    model.set_adapter("b")


class Change(NamedTuple):
    """What happens before a push.

    Attributes:
        name: as it is written down.
        act: what is done to the model.
        only: the rank that does it; -1 for all of them.
    """

    name: str
    act: Callable[[torch.nn.Module], object]
    only: int = -1


SETUPS: dict[str, Callable[[Path], Trainer]] = {"fsdp2_adapters": fsdp2_adapters}
CHANGES = {
    "fsdp2_adapters": [
        Change("other", other), Change("apart", default, only=0), Change("together", default),
    ],
    "fsdp2": [Change("head", new_head), Change("shorter", shorter)],
    "zero3": [Change("shorter", shorter)],
    "ddp": [Change("head", new_head), Change("shorter there", shorter, only=1)],
}  # fmt: skip


def told(trainer: Trainer, session: weightwire.Session, change: Change, given: argparse.Namespace) -> dict[str, object]:
    """What the push after a change came to; where it went, how far what is served is from what the trainer holds."""
    if change.only in {-1, dist.get_rank()}:
        change.act(trainer.model)
    said = attempt(lambda: session.push(version=change.name))
    if not said["error"]:
        weights = trainer.weights()
        said["off"] = distance(score(given.url, PROMPT), scores(given.checkpoint, weights))
    return said


def main() -> None:
    parser = words.parser()
    parser.add_argument("setups", nargs="+")
    given = parser.parse_args()
    starting.start()
    for setup in given.setups:
        trainer = SETUPS.get(setup, partial(make, setup))(given.checkpoint)
        with weightwire.connect(given.url, trainer.model, given.options) as session:
            session.push(version="first")
            said = {change.name: told(trainer, session, change, given) for change in CHANGES[setup]}
        words.say(given.out, setup, said)
    os._exit(0)


if __name__ == "__main__":
    main()
