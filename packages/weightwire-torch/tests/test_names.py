"""The rules from wrapped names to checkpoint names."""

from __future__ import annotations

import pytest
from weightwire.errors import ManifestError
from weightwire_torch.names import WRAPPERS, Front, Segment, normalise, normalise_all

WEIGHT = "model.layers.0.mlp.weight"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (WEIGHT, WEIGHT),
        (f"module.{WEIGHT}", WEIGHT),  # DDP
        (f"module.module.{WEIGHT}", WEIGHT),  # DDP in DeepSpeed
        (f"_orig_mod.{WEIGHT}", WEIGHT),  # compile(model)
        (f"module._orig_mod.{WEIGHT}", WEIGHT),  # DDP(compile(model))
        (f"_orig_mod.module.{WEIGHT}", WEIGHT),  # compile(DDP(model))
        ("model.layers.0._orig_mod.mlp.weight", WEIGHT),  # a compiled submodule
        ("model.layers.0._checkpoint_wrapped_module.mlp.weight", WEIGHT),
        ("_fsdp_wrapped_module.model.layers.0._fsdp_wrapped_module.mlp.weight", WEIGHT),
        ("model.module.weight", "model.module.weight"),  # only at the front
        ("model.my_orig_mod.weight", "model.my_orig_mod.weight"),  # only whole segments
        ("modules.weight", "modules.weight"),
    ],
)
def test_wrappers_leave_no_trace_in_a_name(given: str, expected: str) -> None:
    assert normalise(given) == expected


def test_a_rule_can_leave_a_tensor_out() -> None:
    def no_adapters(name: str) -> str | None:
        return None if "lora_" in name else name

    rules = (Front("base_model.model."), Segment("base_layer"), no_adapters, *WRAPPERS)
    names = ["base_model.model.q.base_layer.weight", "base_model.model.q.lora_A.default.weight"]
    assert normalise_all(names, rules) == {names[0]: "q.weight"}


def test_two_names_that_become_one_are_refused_by_both_names() -> None:
    with pytest.raises(ManifestError, match=r"'module\.a'.*'a'|'a'.*'module\.a'"):
        normalise_all(["module.a", "a"])
