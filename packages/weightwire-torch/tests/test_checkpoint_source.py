"""The weights of a checkpoint on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from weightwire.errors import ConfigurationError
from weightwire.options import Options
from weightwire.planes import Releases, WeightSource
from weightwire_torch.checkpoint_source import CheckpointSource
from weightwire_torch.claims import claim_checkpoint

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def tensors() -> Tensors:
    named: Tensors = {"embed.weight": torch.randn(8, 4)}
    for layer in range(11):  # 10 comes before 2 where names are sorted as text
        named[f"layers.{layer}.weight"] = torch.randn(4, 4).bfloat16()
        named[f"layers.{layer}.scale"] = torch.randn(()).to(torch.float8_e4m3fn)
    named["norm.weight"] = torch.randn(4)
    return named


def whole(directory: Path, tensors: Tensors) -> Path:
    save_file(tensors, directory / "model.safetensors")
    return directory


def sharded(directory: Path, tensors: Tensors) -> Path:
    """Two shards, with a layer that lies in both."""
    files: dict[str, Tensors] = {"model-00001-of-00002.safetensors": {}, "model-00002-of-00002.safetensors": {}}
    first, second = files.values()
    for name, tensor in tensors.items():
        (first if name < "layers.5.w" else second)[name] = tensor
    for file, part in files.items():
        save_file(part, directory / file)
    weight_map = {name: file for file, part in files.items() for name in part}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


@pytest.mark.parametrize("save", [whole, sharded])
@pytest.mark.parametrize("kind", [str, Path])
def test_every_tensor_of_a_checkpoint_comes_back_bit_for_bit(tmp_path, tensors, save, kind) -> None:
    source = CheckpointSource(kind(save(tmp_path, tensors)), Options())
    assert isinstance(source, WeightSource)
    manifest = source.manifest()
    assert set(manifest.names) == set(tensors)
    gathered: list[torch.Tensor] = []
    for group, (start, stop) in enumerate(manifest.groups):
        gathered += source.gather(group)
        assert len(gathered) == stop
        assert start < stop
    for meta, tensor in zip(manifest.tensors, gathered, strict=True):
        assert (tensor.dtype, tuple(tensor.shape)) == (tensors[meta.name].dtype, meta.shape)
        assert torch.equal(tensor.view(-1).view(torch.uint8), tensors[meta.name].view(-1).view(torch.uint8))


def test_a_file_is_opened_once_a_round_and_the_tensors_outlast_it(tmp_path, tensors, monkeypatch) -> None:
    opened: list[str] = []

    def count(path: Path, framework: str) -> object:
        opened.append(path.name)
        return safe_open(path, framework=framework)

    monkeypatch.setattr("weightwire_torch.checkpoint_source.safe_open", count)
    source = CheckpointSource(sharded(tmp_path, tensors), Options())
    assert isinstance(source, Releases)
    names = source.manifest().names
    for _ in range(2):
        gathered = [tensor for group in range(len(source.manifest().groups)) for tensor in source.gather(group)]
        source.release()
        assert all(torch.equal(one.double(), tensors[name].double()) for name, one in zip(names, gathered, strict=True))
    assert len(opened) == 2 * len(set(opened)) == 4


@pytest.mark.parametrize("save", [whole, sharded])
def test_a_layer_is_one_group_wherever_its_tensors_lie(tmp_path, tensors, save) -> None:
    manifest = CheckpointSource(save(tmp_path, tensors), Options()).manifest()
    groups = [manifest.names[start:stop] for start, stop in manifest.groups]
    layers = [names[0].split(".")[1] for names in groups if names[0].startswith("layers.")]
    assert layers == [str(layer) for layer in range(11)]


def test_paths_are_claimed_and_nothing_else(tmp_path: Path) -> None:
    assert claim_checkpoint(tmp_path) == 10
    assert claim_checkpoint("some/where") == 10
    assert claim_checkpoint(torch.nn.Linear(1, 1)) == 0


def test_a_directory_without_a_checkpoint_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="safetensors"):
        CheckpointSource(tmp_path, Options())
