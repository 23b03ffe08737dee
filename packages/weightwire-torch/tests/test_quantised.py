"""4-bit weights travel as the forward uses them; what can't be read is refused by name."""

from __future__ import annotations

import copy

import bitsandbytes
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.testing._internal.two_tensor import TwoTensor
from weightwire.errors import ManifestError
from weightwire.options import Options
from weightwire_torch.sources import ModuleSource

WIDTH = 64


class Model(torch.nn.Module):
    def __init__(self, q: torch.nn.Module) -> None:
        super().__init__()
        self.q = q
        self.o = torch.nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.o(self.q(x))


def four_bit(dtype: torch.dtype = torch.float32) -> Model:
    """Quantised by bitsandbytes itself, when it is moved to its device."""
    torch.manual_seed(0)
    layer = bitsandbytes.nn.Linear4bit(WIDTH, WIDTH, compute_dtype=dtype, quant_type="nf4")
    layer.load_state_dict(torch.nn.Linear(WIDTH, WIDTH).state_dict())
    return Model(layer).to(dtype).to("cpu")


def sent(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    source = ModuleSource(model, Options())
    names = source.manifest().names
    tensors = [tensor for group in range(len(source.manifest().groups)) for tensor in source.gather(group)]
    return dict(zip(names, tensors, strict=True))


def forward(tensors: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    plain = Model(torch.nn.Linear(WIDTH, WIDTH))
    plain.load_state_dict(tensors)
    return plain(x)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_the_shape_and_the_dtype_are_those_from_before_it_was_quantised(dtype: torch.dtype) -> None:
    model = four_bit(dtype)
    assert model.q.weight.shape != (WIDTH, WIDTH)
    described = ModuleSource(model, Options()).manifest().tensors[0]
    found = sent(model)["q.weight"]
    assert (described.name, described.shape, described.dtype) == ("q.weight", (WIDTH, WIDTH), str(dtype)[6:])
    assert (found.shape, found.dtype) == ((WIDTH, WIDTH), dtype)


def test_the_values_are_those_that_the_forward_computes_with(x: torch.Tensor) -> None:
    model = four_bit()
    packed = model.q.weight.data.clone()
    assert (forward(sent(model), x) - model(x)).abs().max() < 1e-5
    assert torch.equal(model.q.weight.data, packed)


def test_a_layer_that_is_not_quantised_yet_is_a_plain_one(x: torch.Tensor) -> None:
    torch.manual_seed(0)
    layer = bitsandbytes.nn.Linear4bit(WIDTH, WIDTH)
    assert torch.equal(sent(Model(layer))["q.weight"], layer.weight.detach())


@pytest.mark.parametrize("known_to_peft", [True, False], ids=["as transformers loads it", "unannounced"])
def test_adapters_over_4_bit_weights_are_merged_into_what_is_sent(known_to_peft: bool, x: torch.Tensor) -> None:
    model = four_bit()
    model.is_loaded_in_4bit = known_to_peft
    adapted = get_peft_model(model, LoraConfig(target_modules=["q"], init_lora_weights=False))
    packed = model.q.base_layer.weight.data.clone()
    with adapted.disable_adapter():
        without = adapted(x)
    assert (forward(sent(adapted), x) - adapted(x)).abs().max() < 1e-5
    assert (adapted(x) - without).abs().max() > 1e-2
    assert torch.equal(model.q.base_layer.weight.data, packed)


def eight_bit() -> torch.nn.Module:
    return Model(bitsandbytes.nn.Linear8bitLt(WIDTH, WIDTH, has_fp16_weights=False))


def sharded_four_bit() -> torch.nn.Module:
    """As a framework leaves it that knows nothing of 4 bits: the bytes, in a parameter of its own kind."""
    model = four_bit()
    model.q._parameters["weight"] = torch.nn.Parameter(model.q.weight.data.clone(), requires_grad=False)
    return model


def partitioned_four_bit() -> torch.nn.Module:
    model = four_bit()
    model.q.weight.ds_id = 0  # what ZeRO-3 sets
    return model


def of_another_library() -> torch.nn.Module:
    model = Model(torch.nn.Linear(WIDTH, WIDTH))
    halves = TwoTensor(torch.zeros(WIDTH, WIDTH), torch.zeros(WIDTH, WIDTH))
    model.q._parameters["weight"] = torch.nn.Parameter(halves, requires_grad=False)
    return model


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (eight_bit, "8-bit weight of bitsandbytes"),
        (sharded_four_bit, "4-bit weight of bitsandbytes that is sharded"),
        (partitioned_four_bit, "4-bit weight of bitsandbytes that is sharded"),
        (of_another_library, "TwoTensor"),
    ],
)
def test_what_can_not_be_read_is_refused_by_name(make, text: str) -> None:
    with pytest.raises(ManifestError, match=r"'q\.weight'") as caught:
        ModuleSource(make(), Options()).manifest()
    assert text in str(caught.value)
    assert "QLoRA" in str(caught.value)


def test_adapters_over_8_bit_weights_are_refused_too() -> None:
    model = eight_bit()
    model.is_loaded_in_8bit = True
    adapted = get_peft_model(copy.deepcopy(model), LoraConfig(target_modules=["q"]))
    with pytest.raises(ManifestError, match=r"q\.base_layer\.weight"):
        ModuleSource(adapted, Options()).manifest()
