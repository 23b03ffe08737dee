from __future__ import annotations

import pytest
from weightwire.deadlines import Deadline
from weightwire.errors import (
    CompatibilityError,
    ConfigurationError,
    EngineRefused,
    GarbledReply,
    StateError,
)
from weightwire.messages import EngineKind
from weightwire.states import RECOVERED, EngineState
from weightwire.vllm import probe


@pytest.fixture
def probed(control, soon):
    """Probes the server as that version."""
    return lambda version: control(version).probe(soon)


def test_a_stock_server_is_described(probed, http):
    info = probed("0.32.0")
    assert (info.url, info.engine, info.version, info.dialect) == (http.url, "vllm", "0.32.0", "0.28")
    assert (info.control_plane, info.backend, info.kind, info.world_size) == ("vllm", "nccl", EngineKind.STOCK, 1)
    assert (info.paused, info.state, info.weight_version, info.staged) == (False, EngineState.WHOLE, "default", False)
    assert (info.model, info.dtype, info.tied_head, info.notes) == ("org/model", "bfloat16", None, ())
    assert info.limits.num_buffers == 1


@pytest.mark.parametrize("version", ["0.21.0", "0.22.1", "0.26.0", "0.27.1", "0.33.0"])
def test_the_probe_sends_nothing_but_gets(probed, vllm, version):
    info = probed(version)
    assert vllm.posts() == []
    assert info.weight_version == ("default" if version >= "0.27" else None)


def test_the_world_counts_all_replicas(probed, vllm):
    vllm.instead["/get_world_size"] = (200, {"world_size": 4})
    assert probed("0.32.0").world_size == 4


def test_our_engine_is_told_by_its_backend(probed, vllm):
    vllm.config["weight_transfer_config"] = {"backend": "weightwire"}
    info = probed("0.32.0")
    assert (info.kind, info.backend, info.limits.dtypes) == (EngineKind.OURS, "weightwire", ())


def test_up_to_0_21_our_engine_goes_by_ipc_and_announces_itself(probed, vllm):
    vllm.config["weight_transfer_config"] = {"backend": "ipc"}
    vllm.environment["VLLM_WEIGHTWIRE_ENGINE"] = "0.1.0"
    info = probed("0.21.0")
    assert (info.kind, info.backend) == (EngineKind.OURS, "weightwire")


@pytest.mark.parametrize(
    ("version", "backend"), [("0.21.0", "ipc"), ("0.32.0", "ipc"), ("0.32.0", "sparse_nccl"), ("0.33.0", "nccl_m2n")]
)
def test_another_backend_is_refused_with_those_that_are_known(probed, vllm, version, backend):
    vllm.config["weight_transfer_config"] = {"backend": backend}
    with pytest.raises(ConfigurationError, match=f"'{backend}'; known are 'nccl'.*'weightwire'"):
        probed(version)


def test_dev_mode_off_is_refused_with_the_variable_to_set(probed, vllm):
    vllm.dev_mode = False
    with pytest.raises(ConfigurationError, match="switched off") as caught:
        probed("0.32.0")
    assert "VLLM_SERVER_DEV_MODE=1" in caught.value.hint
    assert "weightwire serve-args vllm==0.32.0" in caught.value.hint


def test_an_old_rust_frontend_is_told_from_dev_mode_off(probed, vllm):
    vllm.instead["/update_weights"] = (404, {"detail": "Not Found"})
    with pytest.raises(ConfigurationError, match="Rust frontend") as caught:
        probed("0.27.1")
    assert "VLLM_USE_RUST_FRONTEND" in caught.value.hint


def test_no_weight_transfer_is_refused_with_the_flag_to_add(probed, vllm):
    vllm.config["weight_transfer_config"] = None
    with pytest.raises(ConfigurationError, match="without weight transfer") as caught:
        probed("0.32.0")
    assert """--weight-transfer-config '{"backend":"nccl"}'""" in caught.value.hint


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("lora_config", {"max_loras": 1}, "--enable-lora"),
        ("parallel_config", {"enable_eplb": True}, "--enable-eplb"),
        ("parallel_config", {"data_parallel_external_lb": True}, "external load balancer"),
        ("parallel_config", {"data_parallel_hybrid_lb": True}, "external load balancer"),
    ],
)
def test_features_that_an_update_would_corrupt_are_refused(probed, vllm, part, value, said):
    vllm.config[part] = value
    with pytest.raises(ConfigurationError, match=said):
        probed("0.32.0")


def test_a_server_whose_nccl_is_disabled_is_refused_since_it_would_load_garbage(probed, vllm):
    vllm.environment["VLLM_DISABLE_PYNCCL"] = True
    with pytest.raises(ConfigurationError, match="VLLM_DISABLE_PYNCCL"):
        probed("0.32.0")
    vllm.config["weight_transfer_config"] = {"backend": "weightwire"}
    assert probed("0.32.0").kind is EngineKind.OURS


def test_mamba_is_refused_below_0_24(probed, vllm):
    vllm.config["cache_config"] = {"mamba_block_size": 256}
    with pytest.raises(CompatibilityError, match="Mamba"):
        probed("0.23.0")
    assert probed("0.24.0").state is EngineState.WHOLE


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("speculative_config", {"method": "eagle"}, "draft model keeps its old weights"),
        ("model_config", {"model": "m", "quantization": "fp8"}, "Quantised (fp8)"),
        ("device_config", {"device": "cpu"}, "only a shim"),
    ],
)
def test_what_an_operator_should_know_is_noted(probed, vllm, part, value, said):
    vllm.config[part] = value
    assert said in " ".join(probed("0.32.0").notes)


@pytest.mark.parametrize(
    ("said", "device"),
    [
        ({"device": "cuda"}, "cuda"),
        ({"device": "cuda:0"}, "cuda"),
        ({"device": "cpu", "device_type": "cpu"}, "cpu"),
        ({"device": None, "device_type": "tpu"}, "tpu"),
        ({}, ""),
    ],
)
def test_what_the_workers_run_on_is_told(probed, vllm, said, device):
    vllm.config["device_config"] = said
    assert probed("0.32.0").device == device


@pytest.mark.parametrize(("version", "noted"), [("0.26.0", True), ("0.27.0", False)])
def test_below_0_27_a_quantised_model_may_fail_to_reload(probed, vllm, version, noted):
    vllm.config["model_config"] = {"model": "m", "quantization": "fp8"}
    assert ("can't be reloaded" in " ".join(probed(version).notes)) is noted


def test_a_head_that_the_checkpoint_unties_is_untied(probed, vllm):
    vllm.config["model_config"] = {"model": "m", "word_embeddings_untied_by_checkpoint": True}
    assert probed("0.32.0").tied_head is False


@pytest.mark.parametrize("mark", ["weightwire:updating:r1", "weightwire:r1:torn"])
def test_a_mark_of_an_unfinished_round_is_read_as_torn(probed, vllm, mark):
    vllm.paused, vllm.weight_version = True, mark
    info = probed("0.27.0")
    assert (info.state, info.paused, info.weight_version) == (EngineState.TORN, True, mark)


def test_a_paused_server_without_a_mark_is_whole(probed, vllm):
    vllm.paused, vllm.weight_version = True, "41"
    info = probed("0.27.0")
    assert (info.state, info.paused, info.notes) == (EngineState.WHOLE, True, ("Paused.",))


def test_a_recovered_server_is_torn_and_says_that_it_was_recovered(probed, vllm):
    vllm.paused, vllm.weight_version = True, RECOVERED
    info = probed("0.32.0")
    assert (info.state, info.paused) == (EngineState.TORN, True)
    assert "recovered" in info.notes[0]


def test_below_0_27_a_paused_server_counts_as_torn_and_says_why(probed, vllm):
    vllm.paused = True
    info = probed("0.26.0")
    assert info.state is EngineState.TORN
    assert "counts as torn" in info.notes[0]


@pytest.mark.parametrize("paused", [True, False])
def test_a_sleeping_server_is_refused_with_the_way_to_wake_it(probed, vllm, paused):
    vllm.sleeping, vllm.paused = True, paused
    with pytest.raises(StateError, match="asleep") as caught:
        probed("0.32.0")
    assert "/wake_up" in caught.value.hint


def test_without_metrics_a_paused_server_is_taken_for_awake(probed, vllm):
    vllm.paused = vllm.sleeping = True
    vllm.instead["/metrics"] = (404, {"detail": "Not Found"})
    assert probed("0.32.0").paused


def test_an_engine_that_does_not_answer_is_told_from_a_slow_network(probed, vllm, monkeypatch):
    monkeypatch.setattr(probe, "ANSWERS_WITHIN", 0.2)
    vllm.silent.add("/is_paused")
    with pytest.raises(StateError, match="waits in somebody's transfer"):
        probed("0.32.0")
    vllm.released.set()


def test_a_caller_with_little_time_is_told_too_and_in_time(control, vllm):
    vllm.silent.add("/is_paused")
    deadline = Deadline.after(1.0)
    with pytest.raises(StateError, match="waits in somebody's transfer"):
        control("0.32.0").probe(deadline)
    assert not deadline.expired
    vllm.released.set()


def test_a_dead_engine_is_called_lost(probed, vllm):
    vllm.instead["/is_paused"] = (500, {"error": {"message": "EngineCore encountered an issue."}})
    with pytest.raises(EngineRefused, match="engine lost") as caught:
        probed("0.32.0")
    assert caught.value.status == 500


@pytest.mark.parametrize("path", ["/get_world_size", "/server_info", "/is_paused", "/is_sleeping", "/weight_info"])
@pytest.mark.parametrize("body", [b"<html>", {"unexpected": 1}, []])
def test_an_answer_of_another_shape_is_garbled(probed, vllm, path, body):
    vllm.instead[path] = (200, body)
    with pytest.raises(GarbledReply, match=path):
        probed("0.32.0")


def test_a_guard_in_front_of_the_routes_is_named(probed, vllm):
    vllm.instead["/get_world_size"] = (403, b"forbidden")
    with pytest.raises(EngineRefused) as caught:
        probed("0.32.0")
    assert "`headers`" in caught.value.hint


@pytest.mark.parametrize(("answer", "now"), [((200, {"version": "0.31.0"}), "vLLM 0.31.0"), ((404, b""), "something")])
def test_a_server_that_became_another_is_refused(control, vllm, soon, answer, now):
    plane = control("0.32.0")
    vllm.instead["/version"] = answer
    with pytest.raises(StateError, match=f"is {now}"):
        plane.probe(soon)
