"""The control plane by itself: what it calls, what it does not, and how it fails."""

from __future__ import annotations

import pytest
from weightwire.errors import CompatibilityError, ConfigurationError, EngineRefused, ManifestError, StateError
from weightwire.messages import (
    CachePolicy,
    ChannelRequest,
    EngineKind,
    Manifest,
    PackGeometry,
    PauseMode,
    Rendezvous,
    TensorMeta,
)
from weightwire.states import EngineState
from weightwire_testing.reference.settings import Backend

VERSIONS = ["0.17.1", "0.18.1", "0.19.1", "0.20.2"]


def _posts(engine):
    return [call.path for call in engine.calls() if call.method == "POST"]


@pytest.mark.parametrize("version", VERSIONS)
def test_ours_is_told_by_its_mark_behind_the_name_ipc(engine, control, soon, version):
    info = control(engine(version)).probe(soon)
    assert (info.dialect, info.control_plane, info.backend) == ("0.17", "vllm-legacy", "weightwire")
    assert (info.kind, info.weight_version, info.limits.whole_modules) == (EngineKind.OURS, None, True)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stock_server_is_fed_packs_where_they_are_safe(engine, control, soon, version):
    info = control(engine(version, backend=Backend.NCCL)).probe(soon)
    assert (info.kind, info.backend) == (EngineKind.STOCK, "nccl")
    assert (info.limits.packed, info.limits.num_buffers) == (version != "0.17.1", 1)
    assert info.limits.whole_modules


def test_dense_replicas_are_refused_on_a_stock_0_17(engine, control, soon):
    with pytest.raises(CompatibilityError, match="2 replicas"):
        control(engine("0.17.1", backend=Backend.NCCL, data_parallel=2)).probe(soon)


@pytest.mark.parametrize(("version", "backend"), [("0.17.1", Backend.WEIGHTWIRE), ("0.18.1", Backend.NCCL)])
def test_and_nowhere_else(engine, control, soon, version, backend):
    assert control(engine(version, backend=backend, data_parallel=2)).probe(soon).world_size == 2


def test_dev_mode_off_is_refused_with_the_variable_to_set(engine, control, soon):
    with pytest.raises(ConfigurationError, match="switched off") as caught:
        control(engine("0.20.2", dev_mode=False)).probe(soon)
    assert "VLLM_SERVER_DEV_MODE=1" in caught.value.hint


@pytest.mark.parametrize("version", VERSIONS)
def test_a_paused_server_counts_as_torn_since_nothing_says_why(engine, control, soon, version):
    plane = control(engine(version))
    assert plane.probe(soon).state is EngineState.WHOLE
    plane.pause(PauseMode.KEEP, CachePolicy.RESET, soon)
    info = plane.probe(soon)
    assert (info.paused, info.state) == (True, EngineState.TORN)
    assert "counts as torn" in " ".join(info.notes)
    plane.resume(soon)
    assert plane.probe(soon).state is EngineState.WHOLE


def test_begin_finish_mark_and_closing_call_nothing(engine, control, plan, soon):
    server = engine("0.20.2")
    plane = control(server)
    plane.begin(plan, soon)
    plane.finish(plan, soon)
    assert plane.mark("weightwire:updating:r1", soon) is False
    assert plane.weight_version(soon) is None
    plane.close_channel(soon)
    assert server.calls() == []


def test_before_a_byte_was_sent_a_round_can_be_taken_back(engine, control, plan, soon):
    plane = control(engine("0.20.2"))
    plane.begin(plan, soon)
    plane.abort_update(plan, soon)


def test_once_an_update_was_sent_it_cant_and_the_error_says_how_much_was(engine, control, plan, soon):
    plane = control(engine("0.20.2"))
    plane.begin(plan, soon)
    with pytest.raises(EngineRefused, match="refused"):
        plane.update(plan, plan.windows[0], soon).result(soon)
    with pytest.raises(StateError, match=r"r1 can't be taken back.*1 of 2 were sent.*torn") as caught:
        plane.abort_update(plan, soon)
    assert "push again, all weights" in caught.value.hint
    plane.begin(plan, soon)
    plane.abort_update(plan, soon)


@pytest.mark.parametrize("version", VERSIONS)
def test_before_0_18_a_refusal_sends_to_the_servers_log(engine, control, plan, soon, version):
    told = version != "0.17.1"
    plane = control(engine(version))
    plane.probe(soon)
    with pytest.raises(EngineRefused) as caught:
        plane.update(plan, plan.windows[0], soon).result(soon)
    assert ("no channel" in caught.value.server_text) is told
    assert ("log says why" in caught.value.hint) is not told


def test_a_flush_waits_for_a_channel_since_without_one_it_is_refused(engine, control, plan, soon):
    server = engine("0.20.2")
    plane = control(server)
    plane.probe(soon)
    plane.flush(soon)
    assert _posts(server) == []
    with pytest.raises(EngineRefused, match="engine is lost"):
        plane.begin(plan, soon)
    assert _posts(server) == ["/update_weights"]


def test_with_two_workers_old_answers_are_read_out_first(engine, control, plan, soon):
    server = engine("0.20.2", workers=2)
    plane = control(server)
    plane.probe(soon)
    with pytest.raises(EngineRefused):
        plane.update(plan, plan.windows[0], soon).result(soon)
    plane.flush(soon)
    assert set(_posts(server)[1:]) == {"/collective_rpc"}


def test_what_the_release_cant_load_is_refused_before_any_call(engine, control, soon):
    server = engine("0.19.1")
    manifest = Manifest((TensorMeta("logit_scale", "float32", ()),), ((0, 1),))
    request = ChannelRequest(
        rendezvous=Rendezvous(address="127.0.0.1", port=1, world_size=2, extra={"transport": "gloo"}),
        rank_offset=1,
        geometry=PackGeometry(packed=False, buffer_bytes=1024, num_buffers=1),
        manifest=manifest,
    )
    with pytest.raises(ManifestError, match="logit_scale"):
        control(server).init_channel(request, soon)
    assert server.calls() == []
