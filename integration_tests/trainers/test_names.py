"""Whatever a model is wrapped in, the names that travel are those that ``save_pretrained`` writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from tiny_models import MODELS, layers
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel
from weightwire import negotiate
from weightwire import plugins as discover
from weightwire.options import Options

Wrap = Callable[[PreTrainedModel], torch.nn.Module]


@pytest.fixture(scope="module", autouse=True)
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The wrappers want a process group; one process is group enough for names."""
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, torch.Tensor]]:
    """What ``save_pretrained`` writes of a model, by name."""
    made: dict[str, dict[str, torch.Tensor]] = {}

    def read(name: str) -> dict[str, torch.Tensor]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            fresh(name).save_pretrained(folder)
            made[name] = load_file(folder / "model.safetensors")
        return made[name]

    return read


def fresh(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    return MODELS[name]()


def plain(model: PreTrainedModel) -> torch.nn.Module:
    return model


def ddp(model: PreTrainedModel) -> torch.nn.Module:
    return DistributedDataParallel(model)


def compiled(model: PreTrainedModel) -> torch.nn.Module:
    layers(model)[0].compile(backend="eager")
    inner = layers(model)[0]
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and inner in list(module):
            module[0] = torch.compile(inner, backend="eager")
    return torch.compile(model, backend="eager")


def checkpointing(model: PreTrainedModel) -> torch.nn.Module:
    chosen = {id(layer) for layer in layers(model)}
    apply_activation_checkpointing(model, check_fn=lambda module: id(module) in chosen)
    return model


def fsdp1(model: PreTrainedModel) -> torch.nn.Module:
    for module in [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]:
        for index, layer in enumerate(module):
            if any(True for _ in layer.children()):
                module[index] = FullyShardedDataParallel(layer, use_orig_params=True, device_id=torch.device("cpu"))
    return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))


def fsdp2(model: PreTrainedModel) -> torch.nn.Module:
    for layer in layers(model):
        fully_shard(layer)
    return fully_shard(model)


def fsdp2_of_checkpointing(model: PreTrainedModel) -> torch.nn.Module:
    return fsdp2(checkpointing(model))


def lora(model: PreTrainedModel) -> torch.nn.Module:
    return get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", modules_to_save=["norm"]))


def compiled_lora_in_ddp(model: PreTrainedModel) -> torch.nn.Module:
    return torch.compile(ddp(lora(model)), backend="eager")


def fsdp2_of_lora(model: PreTrainedModel) -> torch.nn.Module:
    return fsdp2(lora(model))


WRAPPERS: list[Wrap] = [
    plain, ddp, compiled, checkpointing, fsdp1, fsdp2, fsdp2_of_checkpointing, lora, compiled_lora_in_ddp, fsdp2_of_lora
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("wrap", WRAPPERS)
@pytest.mark.parametrize("name", MODELS)
def test_names_shapes_and_values_are_those_that_save_pretrained_writes(name: str, wrap: Wrap, saved) -> None:
    expected = saved(name)
    source = negotiate.weight_source(discover().registry, wrap(fresh(name)), Options())
    manifest = source.manifest()
    assert set(manifest.names) == set(expected)
    assert len(manifest.names) == len(expected)
    for group, (start, stop) in enumerate(manifest.groups):
        gathered = source.gather(group)
        for meta, tensor in zip(manifest.tensors[start:stop], gathered, strict=True):
            assert meta.shape == tuple(tensor.shape) == tuple(expected[meta.name].shape), meta.name
            assert torch.equal(tensor, expected[meta.name]), meta.name


def test_a_checkpoint_that_was_loaded_has_the_names_it_had(tmp_path: Path, saved) -> None:
    fresh("qwen25_vl").save_pretrained(tmp_path)
    loaded = type(fresh("qwen25_vl")).from_pretrained(tmp_path)
    source = negotiate.weight_source(discover().registry, loaded, Options())
    assert set(source.manifest().names) == set(saved("qwen25_vl"))
