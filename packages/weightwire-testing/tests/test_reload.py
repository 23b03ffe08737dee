"""The table of failures of vLLM's layer-wise reload, one sentence each."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from weightwire_testing.model import HEAD, ModelShape, TinyLlama
from weightwire_testing.reference.release import Release
from weightwire_testing.reference.reload import GARBAGE, Reload, commit

Q, K, V = (f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv")
QKV = "model.layers.0.self_attn.qkv_proj"
O = "model.layers.0.self_attn.o_proj.weight"  # noqa: E741
NORM = "model.norm.weight"
NEW = TinyLlama(seed=2).checkpoint_tensors()


def fresh(version: str = "0.32.0", **shape: bool) -> Reload:
    return Reload(TinyLlama(ModelShape(**shape), seed=1), Release.of(version))


def holds(reload: Reload, names: Iterable[str], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(reload.parameter(name), other[name]) for name in names)


def cut(reload: Reload, after: str) -> None:
    """A round that ends after the tensor *after*, and is never closed."""
    reload.begin()
    names = list(NEW)
    reload.load((name, NEW[name]) for name in names[: names.index(after) + 1])


def push(reload: Reload) -> None:
    reload.begin()
    reload.load(NEW.items())
    reload.finish()


def test_a_full_round_brings_every_tensor_over() -> None:
    reload = fresh()
    push(reload)
    assert holds(reload, NEW, NEW)
    assert not reload.open
    assert not reload.garbage


def test_a_tensor_of_another_dtype_is_cast() -> None:
    reload = fresh()
    reload.begin()
    reload.load([(NORM, NEW[NORM].bfloat16())])
    reload.finish()
    assert reload.parameter(NORM).dtype == torch.float32


def test_an_empty_round_keeps_the_old_weights() -> None:
    reload = fresh()
    old = {name: tensor.clone() for name, tensor in reload.model.checkpoint_tensors().items()}
    reload.begin()
    assert reload.open
    reload.finish()
    assert holds(reload, old, old)


def test_whole_modules_alone_change_only_themselves() -> None:
    reload = fresh()
    old = {name: tensor.clone() for name, tensor in reload.model.checkpoint_tensors().items()}
    reload.begin()
    reload.load([(name, NEW[name]) for name in (V, Q, K)])
    reload.finish()
    assert holds(reload, (Q, K, V), NEW)
    assert holds(reload, old.keys() - {Q, K, V}, old)


def test_half_of_a_fused_layer_is_finished_without_a_word_and_the_rest_is_garbage() -> None:
    reload = fresh()
    reload.begin()
    reload.load([(K, NEW[K])])
    reload.finish()
    assert reload.garbage == {QKV}
    assert holds(reload, (K,), NEW)
    assert all((reload.parameter(name) == GARBAGE).all() for name in (Q, V))


def test_what_was_taken_is_read_when_its_module_is_whole_and_not_before() -> None:
    reload, buffer = fresh(), NEW[Q].clone()
    reload.begin()
    reload.load([(Q, buffer)])
    buffer.zero_()
    reload.load([(K, NEW[K]), (V, NEW[V])])
    assert holds(reload, (K, V), NEW)
    assert not reload.parameter(Q).any()


@pytest.mark.parametrize("version", ["0.17.1", "0.22.1", "0.32.0"])
def test_a_retry_after_a_cut_between_modules_works(version: str) -> None:
    reload = fresh(version)
    cut(reload, after=O)
    push(reload)
    assert holds(reload, NEW, NEW)


@pytest.mark.parametrize(
    ("version", "says"), [("0.20.2", "Attempted to load"), ("0.22.1", "into parameter"), ("0.32.0", "weight_loader")]
)
@pytest.mark.parametrize("after", [Q, K, "model.layers.1.mlp.gate_proj.weight"])
def test_a_retry_after_a_cut_inside_a_fused_layer_fails(version: str, says: str, after: str) -> None:
    reload = fresh(version)
    cut(reload, after)
    reload.begin()
    with pytest.raises((AttributeError, ValueError), match=says):
        reload.load(NEW.items())


def test_after_a_flush_a_full_round_makes_the_model_whole() -> None:
    reload = fresh()
    cut(reload, after=Q)
    reload.begin()
    reload.finish()
    assert reload.garbage == {QKV}
    push(reload)
    assert holds(reload, NEW, NEW)
    assert not reload.garbage


def test_a_wrong_shape_in_the_first_shard_can_be_flushed() -> None:
    reload = fresh()
    reload.begin()
    with pytest.raises(RuntimeError, match=r"length \(64\) exceeds dimension size \(128\)"):
        reload.load([(Q, NEW[K])])
    reload.finish()
    push(reload)
    assert holds(reload, NEW, NEW)


def test_a_wrong_shape_in_a_later_shard_fails_every_finish_for_ever() -> None:
    reload = fresh()
    reload.begin()
    with pytest.raises(RuntimeError, match="exceeds dimension size"):
        reload.load([(Q, NEW[Q]), (K, NEW[Q])])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="exceeds dimension size"):
            reload.finish()
        reload.begin()
    assert reload.open


def test_a_wrong_shape_in_a_plain_linear_layer_says_nothing() -> None:
    reload = fresh()
    reload.begin()
    with pytest.raises(AssertionError, match=r"^$"):
        reload.load([(O, NEW[Q][:64])])


def test_a_wrong_shape_of_a_norm_says_both_shapes() -> None:
    reload = fresh()
    reload.begin()
    with pytest.raises(ValueError, match=r"\[64\].*\[128\]"):
        reload.load([(NORM, torch.ones(64))])


@pytest.mark.parametrize("version", ["0.22.1", "0.32.0"])
def test_an_unknown_top_level_name_is_refused(version: str) -> None:
    reload = fresh(version)
    reload.begin()
    with pytest.raises(ValueError, match="named 'nope' in LlamaForCausalLM"):
        reload.load([("nope.weight", NEW[Q])])


def test_an_unknown_inner_name_is_refused_only_from_0_23() -> None:
    name = "model.layers.0.nope.weight"
    old, new = fresh("0.22.1"), fresh("0.23.0")
    old.begin()
    old.load([(name, NEW[Q])])
    new.begin()
    with pytest.raises(ValueError, match=r"named 'layers\.0\.nope' in LlamaModel"):
        new.load([(name, NEW[Q])])


def test_a_head_sent_to_a_tied_model_is_skipped() -> None:
    reload = fresh(tied=True)
    reload.begin()
    reload.load([(HEAD, NEW[HEAD])])
    reload.finish()
    assert not torch.equal(reload.model.lm_head.weight, NEW[HEAD])


def test_a_second_copy_of_a_norm_is_taken_in_place() -> None:
    reload = fresh()
    reload.begin()
    reload.load([(NORM, NEW[NORM] + 1), (NORM, NEW[NORM])])
    assert holds(reload, (NORM,), NEW)


def test_a_commit_copies_whole_modules_without_opening_an_update() -> None:
    reload = fresh()
    commit(reload, {name: NEW[name] for name in (Q, K, V)})
    assert holds(reload, (Q, K, V), NEW)
    assert not reload.open


def test_a_commit_of_half_a_fused_layer_changes_nothing() -> None:
    reload = fresh()
    old = reload.parameter(Q).clone()
    with pytest.raises(ValueError, match=QKV):
        commit(reload, {Q: NEW[Q]})
    assert torch.equal(reload.parameter(Q), old)
