"""The engine as a worker holds it, on a base class with the constructors that vLLM's had."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace

import pytest
from weightwire.errors import CompatibilityError, StateError

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
        self.init, self.rank, self.closed, self.received = init, rank, False, []

    def receive(self, update, load):
        self.received.append((update, load))

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


def test_what_a_worker_parses_is_our_wire(engine_class):
    engine = engine_class("config")
    with pytest.raises(CompatibilityError, match="wire version None"):
        engine.parse_init_info({})
    with pytest.raises(CompatibilityError, match="missing required field"):
        engine.parse_update_info({})


def test_vllms_own_trainer_side_is_sent_to_ours(engine_class):
    with pytest.raises(NotImplementedError, match=r"weightwire\.connect"):
        engine_class.trainer_send_weights(iter([]), {})
