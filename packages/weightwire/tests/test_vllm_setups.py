from __future__ import annotations

import pytest
from weightwire.engine_wire import MARK
from weightwire.errors import CompatibilityError, ConfigurationError
from weightwire.messages import EngineKind
from weightwire.vllm import setups
from weightwire.vllm.advice import ways
from weightwire.vllm.server_info import Config, Environment, Model, Parallel, ServerInfo, WeightTransfer


def _server(backend="nccl", announced="", **parallel):
    return ServerInfo(
        vllm_config=Config(
            model_config=Model(model="m"),
            parallel_config=Parallel(**parallel),
            weight_transfer_config=WeightTransfer(backend),
        ),
        vllm_env=Environment(vllm_weightwire_engine=announced),
    )


@pytest.mark.parametrize("version", ["0.17.1", "0.20.2", "0.21.0"])
def test_up_to_0_21_our_engine_goes_by_ipc_and_announces_itself(version):
    assert setups.kind(_server("ipc", "0.1.0"), version) is EngineKind.OURS
    with pytest.raises(ConfigurationError, match="'ipc'") as caught:
        setups.kind(_server("ipc"), version)
    assert MARK in caught.value.hint
    assert "weightwire-vllm-engine" in caught.value.hint


def test_from_0_22_on_ipc_is_vllms_own_whatever_is_announced():
    with pytest.raises(ConfigurationError, match="'ipc'") as caught:
        setups.kind(_server("ipc", "0.1.0"), "0.22.0")
    assert MARK not in caught.value.hint


@pytest.mark.parametrize("version", ["0.17.1", "0.33.0"])
def test_the_stock_engine_is_stock_also_where_ours_is_installed(version):
    assert setups.kind(_server("nccl", "0.1.0"), version) is EngineKind.STOCK


def test_dense_replicas_are_refused_where_the_nccl_engine_does_not_count_them():
    replicas = _server(data_parallel_size=2, is_moe_model=False)
    with pytest.raises(CompatibilityError, match="2 replicas") as caught:
        setups.refuse_unsafe(replicas, "0.17.1")
    assert "0.18" in caught.value.hint
    setups.refuse_unsafe(replicas, "0.18.0")


def test_our_engine_counts_replicas_itself():
    setups.refuse_unsafe(_server("ipc", "0.1.0", data_parallel_size=2, is_moe_model=False), "0.17.1")


@pytest.mark.parametrize("backend", ["nccl", "ipc"])
def test_replicas_of_a_mixture_of_experts_are_refused_before_0_21(backend):
    replicas = _server(backend, "0.1.0", data_parallel_size=2, is_moe_model=True)
    for version in ("0.17.1", "0.20.2"):
        with pytest.raises(CompatibilityError, match="mixture of experts in 2 replicas"):
            setups.refuse_unsafe(replicas, version)
    setups.refuse_unsafe(replicas, "0.21.0")


def test_one_replica_of_a_mixture_of_experts_is_fine():
    setups.refuse_unsafe(_server(is_moe_model=True), "0.17.1")


@pytest.mark.parametrize(
    ("version", "name"), [("0.17.1", "ipc"), ("0.21.0", "ipc"), ("0.22.0", "weightwire"), ("0.33.0", "weightwire")]
)
def test_ours_is_started_under_the_name_that_is_recognised(version, name):
    stock, ours = ways(version)
    assert stock.command[-1] == '{"backend":"nccl"}'
    assert ours.command[-1] == f'{{"backend":"{name}"}}'
    assert setups.kind(_server(name, "0.1.0"), version) is EngineKind.OURS
    assert any("takes no other names" in note for note in ours.notes) is (name == "ipc")
    assert not any("takes no other names" in note for note in stock.notes)


@pytest.mark.parametrize(("version", "said"), [("0.17.1", True), ("0.18.0", False)])
def test_a_release_that_tells_no_errors_is_said_to_need_its_log(version, said):
    for way in ways(version):
        assert any("keep its log" in note for note in way.notes) is said
