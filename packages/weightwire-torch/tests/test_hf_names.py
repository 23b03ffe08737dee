"""The names that transformers' own table gives a checkpoint."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from weightwire.errors import ManifestError
from weightwire_torch import hf_names
from weightwire_torch.hf_names import converter, is_pretrained, left_out

SIZES = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8,
}  # fmt: skip


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**SIZES))


@pytest.fixture(scope="module")
def moe() -> Qwen3MoeForCausalLM:
    experts = {"moe_intermediate_size": 8, "num_experts": 2, "num_experts_per_tok": 1, "decoder_sparse_step": 1}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **experts, mlp_only_layers=[]))


def on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def test_a_model_of_transformers_is_told_from_others(llama: LlamaForCausalLM) -> None:
    assert is_pretrained(llama)
    assert not is_pretrained(torch.nn.Linear(2, 2))
    assert left_out(torch.nn.Linear(2, 2)) == []


def test_what_save_pretrained_leaves_out_is_said(llama: LlamaForCausalLM) -> None:
    llama._keys_to_ignore_on_save = ["model.norm.weight"]
    try:
        assert left_out(llama) == ["model.norm.weight"]
    finally:
        llama._keys_to_ignore_on_save = None


def test_other_models_are_their_own_checkpoints() -> None:
    tensors = {"weight": torch.zeros(2, 2)}
    assert converter(torch.nn.Linear(2, 2), on_meta)(tensors) is tensors


def test_tensors_that_keep_their_names_are_passed_through(llama: LlamaForCausalLM) -> None:
    tensors = dict(llama.named_parameters())
    made = converter(llama, on_meta)(tensors)
    assert list(made) == list(tensors)
    assert all(made[name] is tensor for name, tensor in tensors.items())


def test_packed_experts_get_their_names_one_by_one_also_on_meta(moe: Qwen3MoeForCausalLM) -> None:
    name = "model.layers.0.mlp.experts.gate_up_proj"
    packed = moe.get_parameter(name)
    convert = converter(moe, on_meta)
    made = convert({name: packed})
    prefix = "model.layers.0.mlp.experts"
    assert set(made) == {f"{prefix}.{expert}.{part}_proj.weight" for expert in range(2) for part in ("gate", "up")}
    assert torch.equal(made[f"{prefix}.1.up_proj.weight"], packed[1, 8:])
    shapes = {key: tensor.shape for key, tensor in convert({name: on_meta(packed)}).items()}
    assert shapes == {key: tensor.shape for key, tensor in made.items()}


def test_what_transformers_raises_is_said_with_the_name_of_the_tensor(
    moe: Qwen3MoeForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(model: object, tensors: object) -> object:
        raise KeyError("nothing of the kind")

    monkeypatch.setattr(sys.modules[hf_names._LOADING], "revert_weight_conversion", fails)
    with pytest.raises(ManifestError, match=r"of 'experts': KeyError: .*nothing of the kind"):
        converter(moe, on_meta)({"experts": torch.zeros(1)})


@pytest.mark.parametrize(
    ("mapping", "name", "expected"),
    [
        ({"^visual": "model.visual", "^model": "model.language_model"}, "model.visual.a", "visual.a"),
        ({"^visual": "model.visual", "^model": "model.language_model"}, "model.language_model.a", "model.a"),
        ({r"^model(?!\.(language_model|visual))": "model.language_model"}, "model.language_model.norm", "model.norm"),
        ({"^visual": "model.visual"}, "lm_head.weight", "lm_head.weight"),
        ({}, "a.weight", "a.weight"),
    ],
)
def test_transformers_4_renames_by_patterns_turned_round(
    mapping: dict[str, str], name: str, expected: str, llama: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Transformers 4 has no such module, and a table of patterns on the class.
    monkeypatch.setitem(sys.modules, hf_names._LOADING, ModuleType("older"))
    monkeypatch.setattr(hf_names, "is_pretrained", lambda model: True)
    model = SimpleNamespace(_checkpoint_conversion_mapping=mapping)
    assert list(converter(model, on_meta)({name: torch.zeros(1)})) == [expected]
