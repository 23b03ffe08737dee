"""Which tensors of a model make up its checkpoint, and what becomes of a group of them."""

from __future__ import annotations

import pytest
import torch
from weightwire.errors import ManifestError
from weightwire_torch.blueprint import Blueprint
from weightwire_torch.layout import learn
from weightwire_torch.shadow import shadow
from weightwire_torch.sharding import Unsharded
from weightwire_torch.slots import slots
from weightwire_torch.units import units


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(4, 2)
        self.norm = torch.nn.BatchNorm1d(2)
        self.norm.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.lm_head = torch.nn.Linear(2, 4, bias=False)
        self.lm_head.weight = self.embed.weight


def names(found) -> list[str]:
    return [name for unit in found for name in unit.names]


def test_slots_are_every_place_of_a_parameter_and_persistent_buffers_where_they_are_asked_for() -> None:
    parameters = ["embed.weight", "norm.weight", "norm.bias", "lm_head.weight"]
    assert [slot.name for slot in slots(Model())] == parameters
    statistics = ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    assert [slot.name for slot in slots(Model(), buffers=True)] == parameters[:3] + statistics + parameters[3:]


def test_a_slot_holds_what_is_there_now_and_says_when_nothing_is() -> None:
    model = Model()
    slot = next(slots(model))
    model.embed.weight = torch.nn.Parameter(torch.ones(4, 2))
    assert slot.tensor is model.embed.weight
    model.embed._parameters["weight"] = None
    with pytest.raises(LookupError, match=r"'embed\.weight'"):
        _ = slot.tensor


def test_units_leave_out_what_is_tied_and_what_is_unwanted() -> None:
    assert names(units(Model())) == ["embed.weight", "norm.weight", "norm.bias"]
    assert names(units(Model(), leave_out=["norm.bias"])) == ["embed.weight", "norm.weight"]
    assert "norm.running_var" in names(units(Model(), buffers=True))


def test_two_places_that_become_one_name_are_refused_by_both() -> None:
    model = torch.nn.Module()
    model.module = torch.nn.Linear(2, 2)
    model._orig_mod = torch.nn.Linear(2, 2)
    with pytest.raises(ManifestError, match=r"'module\.weight' and '_orig_mod\.weight' both become 'weight'"):
        units(model)


def test_a_draft_head_is_sent_though_it_is_tied() -> None:
    model = Model()
    model.mtp = torch.nn.Linear(2, 4, bias=False)
    model.mtp.weight = model.embed.weight
    assert names(units(model))[-1] == "mtp.weight"


def test_a_group_is_built_from_whole_tensors_which_are_let_go_on_the_way() -> None:
    model = Model()
    blueprint = Blueprint.of(model, Unsharded().form)
    manifest = blueprint.manifest(dtype="bfloat16")
    assert {meta.dtype for meta in manifest.tensors} == {"bfloat16"}
    assert manifest.groups == ((0, 3),)
    (group,) = blueprint.groups
    whole = [slot.tensor.detach() for slot in group.slots]
    built = group.build(whole)
    assert whole == []
    assert [tensor.data_ptr() for tensor in built] == [slot.tensor.data_ptr() for slot in group.slots]


def split(tensors):
    """A checkpoint that keeps the two rows of `pair` apart."""
    made = {}
    for name, tensor in tensors.items():
        made |= {"first": tensor[0], "second": tensor[1]} if name == "pair" else {f"new.{name}": tensor}
    return made


def test_a_layout_renames_and_converts() -> None:
    tensors = {"a": torch.zeros(2), "pair": torch.ones(2, 3)}
    layout = learn({name: tensor.to("meta") for name, tensor in tensors.items()}, split)
    assert layout.names == ("new.a", "first", "second")
    made = layout.apply(tensors)
    assert made["new.a"] is tensors["a"]
    assert torch.equal(made["second"], torch.ones(3))


def test_a_conversion_that_gives_other_names_for_a_part_than_for_the_whole_is_refused() -> None:
    def erratic(tensors):
        return split(tensors) if len(tensors) > 1 else {"other": next(iter(tensors.values()))}

    forms = {"a": torch.zeros(2, device="meta"), "pair": torch.ones(2, 3, device="meta")}
    with pytest.raises(ManifestError, match="together they become 3 tensors, one by one 2"):
        learn(forms, erratic)


def test_a_shadow_has_the_structure_and_the_classes_and_none_of_the_hooks() -> None:
    model = Model()
    model.register_forward_hook(lambda *_: None)
    model.norm.notes = ["one"]
    twin = shadow(model, lambda tensor: tensor.to("meta"))
    assert type(twin) is Model
    assert not twin._forward_hooks
    assert all(parameter.is_meta for parameter in twin.parameters())
    twin.norm.notes.append("two")
    assert model.norm.notes == ["one"]
    assert not model.embed.weight.is_meta
