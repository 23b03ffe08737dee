"""The weights of a plain module, under the names of its checkpoint."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from weightwire.errors import ManifestError
from weightwire.options import Options
from weightwire.planes import SingleRank, WeightSource
from weightwire_torch.claims import claim_module
from weightwire_torch.sources import ModuleSource

NAMES = ["embed.weight", "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias", "lm_head.weight"]


class Model(torch.nn.Module):
    """A language model's outline."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(8, 4)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))
        self.lm_head = torch.nn.Linear(4, 8, bias=False)
        self.register_buffer("inv_freq", torch.ones(2))
        if tied:
            self.lm_head.weight = self.embed.weight


def source(model: torch.nn.Module, dtype: str = "") -> ModuleSource:
    return ModuleSource(model, Options(), dtype=dtype)


def test_a_module_is_claimed_and_nothing_else() -> None:
    assert claim_module(Model()) == 10
    assert claim_module("checkpoint") == 0
    assert claim_module(object()) == 0


def test_it_is_a_weight_source_of_one_rank_outside_of_torch_distributed() -> None:
    made = source(Model())
    assert isinstance(made, WeightSource)
    assert isinstance(made.ranks, SingleRank)


def test_parameters_travel_in_the_order_of_the_model_a_group_a_layer() -> None:
    manifest = source(Model()).manifest()
    assert list(manifest.names) == NAMES
    assert manifest.groups == ((0, 1), (1, 3), (3, 5), (5, 6))


def test_a_tied_head_is_left_out() -> None:
    assert list(source(Model(tied=True)).manifest().names) == NAMES[:-1]


def compiled_layer() -> torch.nn.Module:
    model = Model()
    model.layers[0] = torch.compile(model.layers[0])
    model.layers[1] = checkpoint_wrapper(model.layers[1])
    return torch.compile(model)


def in_a_parallel_wrapper() -> torch.nn.Module:
    outer = torch.nn.Module()
    outer.module = Model()
    return outer


@pytest.mark.parametrize("make", [compiled_layer, in_a_parallel_wrapper])
def test_wrappers_do_not_show(make) -> None:
    made = source(make())
    assert list(made.manifest().names) == NAMES
    assert [t.shape for t in made.gather(1)] == [(4, 4), (4,)]


def test_gathered_tensors_are_the_parameters_of_now_and_in_place() -> None:
    model = Model()
    made = source(model)
    made.manifest()
    model.layers[0].weight = torch.nn.Parameter(torch.full((4, 4), 7.0))
    model.layers[0].bias.data = torch.full((4,), 3.0)
    weight, bias = made.gather(1)
    assert weight.data_ptr() == model.layers[0].weight.data_ptr()
    assert not weight.requires_grad
    assert (weight[0, 0], bias[0]) == (7.0, 3.0)


def test_floats_can_be_sent_in_another_dtype() -> None:
    assert {t.dtype for t in source(Model(), dtype="bfloat16").manifest().tensors} == {"bfloat16"}


def test_a_module_on_meta_is_refused_by_name() -> None:
    with torch.device("meta"):
        model = Model()
    with pytest.raises(ManifestError, match=r"embed\.weight"):
        source(model).manifest()


def test_a_module_without_parameters_is_refused() -> None:
    with pytest.raises(ManifestError, match="no tensors"):
        source(torch.nn.ReLU()).manifest()


@pytest.mark.parametrize("kind", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
def test_a_parameter_that_is_not_dense_is_refused_by_name(kind: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    model[0].weight = torch.nn.Parameter(getattr(torch.eye(4), kind)())
    with pytest.raises(ManifestError, match=r"'0\.weight' is not dense") as caught:
        ModuleSource(model, Options()).manifest()
    assert "to_dense" in caught.value.hint


@pytest.mark.parametrize("layer", [torch.nn.LazyLinear(3), torch.nn.LazyConv1d(3, 2)])
def test_a_layer_that_has_no_shape_yet_is_refused_with_what_gives_it_one(layer: torch.nn.Module) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), layer)
    with pytest.raises(ManifestError, match=r"'1\.weight' has no shape yet") as caught:
        ModuleSource(model, Options()).manifest()
    assert "one batch" in caught.value.hint
