"""The engine as a worker holds it, on a base class with the constructors that vLLM's had."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from weightwire.errors import CompatibilityError, ManifestError, StateError
from weightwire.messages import TensorMeta

BASE = "vllm.distributed.weight_transfer.base"
RELOAD = "vllm.model_executor.model_loader.reload"


class Base:
    """What 0.22 to 0.33 have in common."""

    def __init__(self, config, *rest):
        self.rest = rest
        self.parallel_config = SimpleNamespace(rank=1, world_size=2, data_parallel_index=1)


class Channel:
    """Notes what is done with it."""

    def __init__(self, init, rank):
        self.init, self.rank, self.closed, self.aborted, self.received = init, rank, False, False, []

    def receive(self, update, load, seen):
        if isinstance(update, Exception):
            raise update
        self.received.append((update, load))
        if seen is not None:
            seen(0, [torch.arange(4.0)])

    def land(self, update, plan):
        self.received.append((update, plan))

    def abort(self):
        self.aborted = True

    def close(self):
        self.closed = True


@pytest.fixture
def engine_class(monkeypatch):
    """The class, made while vLLM's modules can be imported."""
    base, reload = ModuleType(BASE), ModuleType(RELOAD)
    base.WeightTransferEngine = Base
    reload.initialize_layerwise_reload = lambda model: model.calls.append("start")
    reload.finalize_layerwise_reload = lambda model, config: model.calls.append(("finish", config))
    for module in (base, reload):
        parts = module.__name__.split(".")
        for end in range(1, len(parts)):
            name = ".".join(parts[:end])
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    module = import_module("weightwire_vllm_engine.engine")
    monkeypatch.setattr(module, "Channel", SimpleNamespace(join=Channel))
    yield module.WeightwireEngine
    del sys.modules["weightwire_vllm_engine.engine"]  # it is bound to the stand-in


def loaded_model() -> SimpleNamespace:
    return SimpleNamespace(calls=[], load_weights=lambda weights: None)


@pytest.mark.parametrize("rest", [("parallel",), ("parallel", "model"), ("vllm config", "cpu", "model")])
def test_every_release_can_construct_it(engine_class, rest):
    assert engine_class("config", *rest).rest == rest


def test_a_worker_joins_at_its_own_rank_and_leaves_the_channel_before(engine_class):
    engine = engine_class("config")
    engine.init_transfer_engine(SimpleNamespace(rank_offset=1))
    first = engine.channel
    assert first.rank == 1 + 1 * 2 + 1
    engine.init_transfer_engine(SimpleNamespace(rank_offset=5))
    assert (first.closed, engine.channel.rank) == (True, 8)


def test_leaving_twice_is_harmless(engine_class):
    engine = engine_class("config")
    engine.init_transfer_engine(SimpleNamespace(rank_offset=1))
    channel = engine.channel
    engine.shutdown()
    engine.shutdown()
    assert (channel.closed, engine.channel) == (True, None)


def test_an_update_before_any_channel_says_what_to_do(engine_class):
    with pytest.raises(StateError, match="no open channel") as caught:
        engine_class("config").receive_weights(SimpleNamespace())
    assert "connect again" in caught.value.hint


def test_the_loader_is_the_one_that_the_worker_gives_or_the_models_own(engine_class):
    engine = engine_class("config")
    engine.model = loaded_model()
    engine.init_transfer_engine(SimpleNamespace(rank_offset=1))
    engine.receive_weights("up to 0.24", load_weights=print)
    engine.receive_weights("from 0.25")
    assert engine.channel.received == [("up to 0.24", print), ("from 0.25", engine.model.load_weights)]


def test_from_0_25_the_engine_itself_runs_the_layerwise_reload(engine_class):
    engine = engine_class("config")
    engine.model, engine.model_config = loaded_model(), "the model's configuration"
    engine.start_weight_update()
    engine.finish_weight_update()
    assert engine.model.calls == ["start", ("finish", "the model's configuration")]


class Plain(nn.Module):
    """A model of one parameter, loaded by a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4.0), requires_grad=False)
        self.calls: list[object] = []

    def load_weights(self, weights):
        for _, tensor in weights:
            self.weight.data.copy_(tensor)


def planned(engine_class, *, digest="d"):
    """An engine with a channel and a model that can have a plan."""
    engine = engine_class("config")
    engine.model, engine.model_config = Plain(), "its configuration"
    opened(engine, digest)
    return engine


def opened(engine, digest):
    tensors = (TensorMeta("weight", "float32", (4,)),)
    engine.init_transfer_engine(SimpleNamespace(rank_offset=1, digest=digest, tensors=tensors))


def round_of(engine) -> list[str]:
    """Run a round; say what was done."""
    engine.model.calls.clear()
    engine.start_weight_update()
    engine.receive_weights("update")
    engine.finish_weight_update()
    _, way = engine.channel.received[-1]
    return (
        ["the plan"]
        if way is engine.plan
        else [call if isinstance(call, str) else call[0] for call in engine.model.calls]
    )


RELOADED, LANDED = ["start", "finish"], ["the plan"]


def test_the_first_round_takes_the_reload_and_proves_what_later_ones_land_by(engine_class):
    engine = planned(engine_class)
    assert [round_of(engine) for _ in range(3)] == [RELOADED, LANDED, LANDED]


def test_a_plan_outlives_its_channel_but_not_its_manifest(engine_class):
    engine = planned(engine_class)
    round_of(engine)
    opened(engine, "d")
    assert round_of(engine) == LANDED
    opened(engine, "another")
    assert [round_of(engine) for _ in range(2)] == [RELOADED, LANDED]


def test_a_plan_that_was_not_proven_is_given_up_for_good(engine_class):
    engine = planned(engine_class)
    engine.model.weight.data += 1  # not what the channel says was loaded
    assert [round_of(engine) for _ in range(3)] == [RELOADED] * 3
    assert "not what a copy would make it" in engine.planner.why


def test_a_parameter_that_moved_is_found_and_the_plan_made_and_proven_anew(engine_class):
    engine = planned(engine_class)
    round_of(engine)
    engine.model.weight.data = engine.model.weight.data.clone()
    assert [round_of(engine) for _ in range(2)] == [RELOADED, LANDED]


def test_a_draft_models_turn_takes_the_reload_and_leaves_the_plan_alone(engine_class):
    engine = planned(engine_class)
    engine._default_model = engine.model
    round_of(engine)
    engine.model = Plain()
    assert round_of(engine) == RELOADED
    engine.model = engine._default_model
    assert round_of(engine) == LANDED


def test_a_reload_that_broke_off_is_gone_on_with_before_anything_lands(engine_class):
    engine = planned(engine_class)
    engine.start_weight_update()
    with pytest.raises(ManifestError):
        engine.receive_weights(ManifestError("the loader failed"))
    opened(engine, "d")
    assert [round_of(engine) for _ in range(3)] == [RELOADED, RELOADED, LANDED]


def test_a_flush_of_a_round_that_was_to_land_leaves_the_layers_as_they_are_and_claims_nothing(engine_class, caplog):
    caplog.set_level("INFO", "vllm.weightwire")
    engine = planned(engine_class)
    round_of(engine)
    engine.model.calls.clear()
    caplog.clear()
    engine.start_weight_update()
    engine.finish_weight_update()
    assert engine.model.calls == []
    assert caplog.messages == []
    round_of(engine)
    assert caplog.messages == ["Weightwire: the round landed by the plan."]


def test_a_proving_round_that_was_closed_before_it_brought_anything_speaks_neither_for_nor_against_a_plan(engine_class):
    engine = planned(engine_class)
    engine.start_weight_update()
    engine.finish_weight_update()  # as the next trainer does where one was killed
    assert [round_of(engine) for _ in range(2)] == [RELOADED, LANDED]


def test_a_proof_that_finds_no_memory_costs_the_plan_and_not_the_round(engine_class, monkeypatch):
    def full(*tensors: object) -> bool:
        raise torch.OutOfMemoryError("tried to allocate 1 GiB")

    monkeypatch.setattr("weightwire_vllm_engine.proof.same_bits", full)
    engine = planned(engine_class)
    assert [round_of(engine) for _ in range(2)] == [RELOADED] * 2
    assert "tried to allocate 1 GiB" in engine.planner.why


def test_a_model_that_nothing_can_be_recorded_of_takes_the_reload(engine_class, monkeypatch):
    def broken(model: object) -> None:
        raise NotImplementedError("no storage")

    monkeypatch.setattr("weightwire_vllm_engine.plain.check", broken)
    engine = planned(engine_class)
    assert round_of(engine) == RELOADED
    assert "no storage" in engine.planner.why


def test_a_reload_by_somebody_else_that_broke_off_is_no_word_against_a_plan(engine_class):
    engine = planned(engine_class)
    runtime = engine.model.weight
    engine.model.weight = nn.Parameter(torch.empty(4, device="meta"), requires_grad=False)
    engine.start_weight_update()
    assert engine.plan is None
    engine.model.weight = runtime  # the reload puts it back
    engine.receive_weights("update")
    engine.finish_weight_update()
    assert [round_of(engine) for _ in range(2)] == [RELOADED, LANDED]


def test_a_buffer_that_a_broken_off_reload_left_without_memory_is_found_and_the_reload_taken(engine_class):
    engine = planned(engine_class)
    engine.model.register_buffer("angles", torch.ones(4))
    assert [round_of(engine) for _ in range(2)] == [RELOADED, LANDED]
    engine.model.angles = torch.empty(4, device="meta")
    assert round_of(engine) == RELOADED


def test_nothing_lands_by_a_plan_for_another_manifest_than_that_of_a_channel_opened_since(engine_class):
    engine = planned(engine_class)
    round_of(engine)
    engine.start_weight_update()
    opened(engine, "another")
    channel = engine.channel
    with pytest.raises(StateError, match="for another manifest") as caught:
        engine.receive_weights("update")
    assert "start the update again" in caught.value.hint
    assert channel.received == []


def test_a_channel_for_another_manifest_that_is_opened_in_the_middle_of_a_proof_proves_nothing(engine_class):
    engine = planned(engine_class)
    engine.start_weight_update()
    opened(engine, "another")
    engine.receive_weights("update")
    engine.finish_weight_update()
    opened(engine, "d")
    assert [round_of(engine) for _ in range(2)] == [RELOADED, LANDED]


def test_a_channel_that_failed_is_left_at_once(engine_class):
    engine = planned(engine_class)
    channel = engine.channel
    with pytest.raises(ManifestError):
        engine.receive_weights(ManifestError("no"))
    assert (channel.aborted, engine.channel) == (True, None)


def test_what_a_worker_parses_is_our_wire(engine_class):
    engine = engine_class("config")
    with pytest.raises(CompatibilityError, match="wire version None"):
        engine.parse_init_info({})
    with pytest.raises(CompatibilityError, match="missing required field"):
        engine.parse_update_info({})


def test_vllms_own_trainer_side_is_sent_to_ours(engine_class):
    with pytest.raises(NotImplementedError, match=r"weightwire\.connect"):
        engine_class.trainer_send_weights(iter([]), {})
