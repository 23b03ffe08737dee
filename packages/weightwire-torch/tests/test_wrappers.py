"""What stands around a model is seen through; what FSDP1 flattened is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.nn.parallel import DistributedDataParallel
from weightwire.errors import ManifestError
from weightwire_torch.claims import is_a
from weightwire_torch.wrappers import refuse_flattened, unwrap


@pytest.fixture(scope="module", autouse=True)
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The wrappers want a process group."""
    store = torch.distributed.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))


def only_child() -> torch.nn.Module:
    """A model that holds one module under a name of its own."""
    outer = torch.nn.Module()
    outer.backbone = model()
    return outer


def fsdp1(module: torch.nn.Module, strategy: ShardingStrategy) -> torch.nn.Module:
    device = torch.device("cpu")
    return FullyShardedDataParallel(module, sharding_strategy=strategy, use_orig_params=True, device_id=device)


WRAPS = {
    "nothing": lambda inner: inner,
    "ddp": DistributedDataParallel,
    "compile": torch.compile,
    "compile of ddp": lambda inner: torch.compile(DistributedDataParallel(inner)),
    "ddp of compile": lambda inner: DistributedDataParallel(torch.compile(inner)),
    "activation checkpointing": checkpoint_wrapper,
    "fsdp1": lambda inner: fsdp1(inner, ShardingStrategy.NO_SHARD),
    "peft": lambda inner: get_peft_model(inner, LoraConfig(target_modules="all-linear")),
    "compile of ddp of peft": lambda inner: torch.compile(
        DistributedDataParallel(get_peft_model(inner, LoraConfig(target_modules="all-linear")))
    ),
}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("make", [model, only_child])
def test_the_model_inside_is_found(wrap: str, make) -> None:
    inner = make()
    assert unwrap(WRAPS[wrap](inner)) is inner


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_what_fsdp1_sharded_is_refused_by_the_name_of_its_module() -> None:
    outer = only_child()
    # In a world of one the strategy is NO_SHARD, whatever was asked for: set it as it is in a larger one.
    outer.backbone = fsdp1(outer.backbone, ShardingStrategy.NO_SHARD)
    refuse_flattened(outer)
    outer.backbone.sharding_strategy = ShardingStrategy.FULL_SHARD
    with pytest.raises(ManifestError, match="'backbone' is sharded by FSDP1") as caught:
        refuse_flattened(outer)
    assert "pip install weightwire-fsdp2" in str(caught.value)


def test_a_class_that_was_never_imported_has_no_instances() -> None:
    assert is_a(torch.nn.Linear(1, 1), "torch.nn:Linear")
    assert not is_a(torch.nn.Linear(1, 1), "torch.nn:Conv1d")
    assert not is_a(torch.nn.Linear(1, 1), "torch.nn:NoSuchThing")
    assert not is_a(torch.nn.Linear(1, 1), "no.such.module:Linear")


def test_looking_through_wrappers_imports_none_of_them() -> None:
    program = """
import sys, torch
from weightwire_torch.wrappers import refuse_flattened, unwrap
model = torch.nn.Linear(1, 1)
refuse_flattened(model)
assert unwrap(model) is model
heavy = {"peft", "transformers", "deepspeed", "bitsandbytes", "torch.distributed.fsdp"}
sys.exit(", ".join(heavy & set(sys.modules)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
