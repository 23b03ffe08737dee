"""Whole rounds, over sockets and gloo, into a reference engine that loads as a two-call release does."""

from __future__ import annotations

import pytest
from weightwire.errors import UpdateFailed
from weightwire.messages import CachePolicy, PauseMode
from weightwire.states import EngineState
from weightwire_testing.model import TinyLlama, fingerprint

VERSIONS = ["0.17.1", "0.20.2"]
UPDATE, PAUSE, RESUME = "/update_weights", "/pause", "/resume"


def _posts(engine):
    return [call.path for call in engine.calls() if call.method == "POST"]


def _held(model):
    return fingerprint(model.checkpoint_tensors())


@pytest.mark.parametrize("version", VERSIONS)
def test_weights_go_there_and_back(engine, session, version):
    server, a, b = engine(version), TinyLlama(seed=1), TinyLlama(seed=2)
    before = server.fingerprint()
    session(server, b).push(1)
    assert server.fingerprint() == _held(b) != before
    session(server, a).push(2)
    assert server.fingerprint() == _held(a) == before


@pytest.mark.parametrize("version", VERSIONS)
def test_a_round_is_pause_updates_and_resume(engine, session, version):
    server = engine(version)
    session(server, TinyLlama(seed=2)).push(1)
    assert _posts(server) == ["/init_weight_transfer_engine", PAUSE, UPDATE, RESUME]


def test_many_calls_each_of_whole_modules_bring_the_same(engine, session):
    server, model = engine("0.20.2"), TinyLlama(seed=2)
    session(server, model, bucket_bytes=20_000).push(1)
    assert _posts(server).count(UPDATE) > 2
    assert server.fingerprint() == _held(model)
    assert all(holding.garbage == () for holding in server.holdings())


@pytest.mark.parametrize("layout", [{"workers": 2}, {"data_parallel": 2}])
def test_every_worker_gets_them(engine, session, layout):
    server, model = engine("0.20.2", **layout), TinyLlama(seed=2)
    session(server, model).push(1)
    assert [holding.fingerprint for holding in server.holdings()] == [_held(model)] * 2


@pytest.mark.parametrize("version", VERSIONS)
def test_a_failure_in_mid_update_leaves_it_torn_and_paused_and_the_next_push_mends_it(engine, session, version):
    server, model = engine(version), TinyLlama(seed=2)
    trainer = session(server, model, packed=False)
    server.set_faults("receive:refuse=boom@7")
    with pytest.raises(UpdateFailed) as caught:
        trainer.push(1)
    assert caught.value.engine_states == {server.url: EngineState.TORN}
    assert RESUME not in _posts(server)
    server.set_faults()
    trainer.push(2)
    assert server.fingerprint() == _held(model)
    assert _posts(server)[-6:] == [PAUSE, "/init_weight_transfer_engine", PAUSE, UPDATE, UPDATE, RESUME]


def test_another_trainer_mends_it_too(engine, session):
    server, model = engine("0.20.2"), TinyLlama(seed=3)
    server.set_faults("receive:refuse=boom@2")
    with pytest.raises(UpdateFailed):
        session(server, TinyLlama(seed=2), packed=False).push(1)
    server.set_faults()
    session(server, model).push(1)
    assert server.fingerprint() == _held(model)
    assert _posts(server)[-1] == RESUME


def test_a_server_that_someone_paused_before_any_round_takes_a_push(engine, session, control, soon):
    server, model = engine("0.20.2"), TinyLlama(seed=2)
    control(server).pause(PauseMode.KEEP, CachePolicy.RESET, soon)
    session(server, model).push(1)
    assert server.fingerprint() == _held(model)
    assert _posts(server)[-1] == RESUME
