from __future__ import annotations

import pytest
from weightwire.fused import RULES, block_of, gaps, module_of, modules

LAYER = "model.layers.3"
LLAMA = [
    f"{LAYER}.{name}.weight"
    for name in (
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
        "input_layernorm",
    )
]
MLA = [f"{LAYER}.self_attn.{name}.weight" for name in ("q_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj")]


def experts(count: int, parts: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")) -> list[str]:
    return [f"{LAYER}.mlp.experts.{index}.{part}.weight" for index in range(count) for part in parts]


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.qkv_proj"),
        ("model.layers.0.self_attn.v_proj.bias", "model.layers.0.self_attn.qkv_proj"),
        ("model.layers.0.self_attn.k_proj.weight_scale", "model.layers.0.self_attn.qkv_proj"),
        ("model.layers.0.self_attn.q_norm.weight", "model.layers.0.self_attn.q_norm"),
        ("model.layers.0.self_attn.o_proj.weight", "model.layers.0.self_attn.o_proj"),
        ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_up_proj"),
        ("model.layers.0.mlp.shared_expert.gate_proj.weight", "model.layers.0.mlp.shared_expert.gate_up_proj"),
        ("model.layers.0.mlp.experts.17.down_proj.weight", "model.layers.0.mlp.experts"),
        ("model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts"),
        ("model.layers.0.block_sparse_moe.experts.1.w2.weight", "model.layers.0.block_sparse_moe.experts"),
        ("model.layers.0.feed_forward.w3.weight", "model.layers.0.feed_forward.w13"),
        ("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", "model.layers.0.self_attn.fused_qkv_a_proj"),
        ("model.layers.0.linear_attn.in_proj_z.weight", "model.layers.0.linear_attn.in_proj_qkvz"),
        ("model.layers.0.linear_attn.in_proj_a.weight", "model.layers.0.linear_attn.in_proj_ba"),
        ("model.layers.0.linear_attn.A_log", "model.layers.0.linear_attn"),
        ("model.layers.0.linear_attn.dt_bias", "model.layers.0.linear_attn"),
        ("q_proj.weight", "qkv_proj"),
        ("lm_head.weight", "lm_head"),
        ("scale", "scale"),
    ],
)
def test_a_tensor_belongs_to_the_module_it_is_loaded_into(name: str, module: str) -> None:
    assert module_of(name) == module


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("model.layers.12.self_attn.q_proj.weight", "model.layers.12"),
        ("model.layers.3.mlp.experts.7.w1.weight", "model.layers.3"),
        ("visual.blocks.0.attn.qkv.bias", "visual.blocks.0"),
        ("0.weight", "0"),
        ("lm_head.weight", ""),
        ("model.w1.weight", ""),
    ],
)
def test_a_block_is_the_outermost_numbered_module(name: str, block: str) -> None:
    assert block_of(name) == block


def test_modules_groups_names_in_their_order() -> None:
    assert modules(["a.k_proj.weight", "a.o_proj.weight", "a.q_proj.weight"]) == {
        "a.qkv_proj": ("a.k_proj.weight", "a.q_proj.weight"),
        "a.o_proj": ("a.o_proj.weight",),
    }


@pytest.mark.parametrize(
    "names",
    [
        LLAMA,
        MLA,
        [*MLA[1:], f"{LAYER}.self_attn.q_a_proj.weight", f"{LAYER}.self_attn.q_b_proj.weight"],
        experts(4),
        experts(2, ("w1", "w2", "w3")),
        [f"{LAYER}.mlp.experts.gate_up_proj", f"{LAYER}.mlp.experts.down_proj"],
        [f"{LAYER}.mlp.up_proj.weight", f"{LAYER}.mlp.down_proj.weight"],  # Nemotron: no gate at all
        [f"{LAYER}.ff.w1.weight", f"{LAYER}.ff.w2.weight"],
        [*LLAMA, f"{LAYER}.self_attn.k_proj.k_scale", f"{LAYER}.self_attn.v_proj.v_scale"],
        [f"{LAYER}.attn.{part}_proj.weight" for part in "qkv"] + [f"{LAYER}.attn.{part}_proj.bias" for part in "qv"],
        [f"{LAYER}.self_attn.gate_proj.weight", *LLAMA],  # a gate on the attention's output (AFMoE)
        [f"{LAYER}.self_attn.indexer.{part}.weight" for part in ("wk", "weights_proj", "wq_b")],  # DeepSeek-V3.2
        [f"{LAYER}.attention.{part}.weight" for part in ("key", "value", "receptance")],  # RWKV
        ["lm_head.weight", "model.norm.weight"],
        [],
    ],
)
def test_whole_modules_have_no_gaps(names: list[str]) -> None:
    assert gaps(names) == {}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.whole)
def test_every_part_of_every_rule_is_missed(rule) -> None:
    for absent in rule.parts:
        whole = [f"a.0.{part}.weight" for part in rule.parts]
        half = [f"a.1.{part}.weight" for part in rule.parts if part != absent]
        assert gaps([*whole, *half]) == {f"a.1.{rule.whole}": (f"a.1.{absent}.weight",)}


@pytest.mark.parametrize(
    ("absent", "module"),
    [
        ("self_attn.k_proj.weight", "self_attn.qkv_proj"),
        ("mlp.gate_proj.bias", "mlp.gate_up_proj"),
        ("mlp.up_proj.weight_scale", "mlp.gate_up_proj"),
    ],
)
def test_a_missing_weight_bias_or_scale_is_a_gap(absent: str, module: str) -> None:
    parts = (
        "self_attn.q_proj.weight",
        "self_attn.k_proj.weight",
        "self_attn.v_proj.weight",
        "mlp.gate_proj.weight",
        "mlp.up_proj.weight",
        "mlp.gate_proj.bias",
        "mlp.up_proj.bias",
        "mlp.gate_proj.weight_scale",
        "mlp.up_proj.weight_scale",
    )
    names = [f"{LAYER}.{part}" for part in parts if part != absent]
    assert gaps(names) == {f"{LAYER}.{module}": (f"{LAYER}.{absent}",)}


def test_a_lone_query_without_latent_attention_is_a_gap() -> None:
    lacking = gaps([f"{LAYER}.self_attn.q_proj.weight"])
    assert lacking == {
        f"{LAYER}.self_attn.qkv_proj": (f"{LAYER}.self_attn.k_proj.weight", f"{LAYER}.self_attn.v_proj.weight")
    }


def test_an_expert_that_is_left_out_is_a_gap() -> None:
    names = [name for name in experts(4) if ".experts.2." not in name]
    assert list(gaps(names)) == [f"{LAYER}.mlp.experts"]
    assert len(gaps(names)[f"{LAYER}.mlp.experts"]) == 3


def test_an_expert_without_one_of_its_tensors_is_a_gap() -> None:
    absent = f"{LAYER}.mlp.experts.1.down_proj.weight"
    assert gaps([name for name in experts(3) if name != absent]) == {f"{LAYER}.mlp.experts": (absent,)}
