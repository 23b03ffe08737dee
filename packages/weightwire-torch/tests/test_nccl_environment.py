"""What is compared with the engine before anybody joins."""

from __future__ import annotations

import logging
import os
from types import SimpleNamespace

import pytest
import torch
from weightwire.errors import CompatibilityError, ConfigurationError
from weightwire.messages import EngineInfo, EngineKind, ReceiverLimits
from weightwire_torch import nccl_environment, nccl_plane, nccl_version
from weightwire_torch.nccl_device import explain_no_cuda
from weightwire_torch.nccl_path import default_library

CPU = torch.device("cpu")
GPU = torch.device("cuda", 1)
UUID = "GPU-8f6e2c51-0000-1111-2222-333344445555"


def engine(url: str = "http://127.0.0.1:8000", **fields: object) -> EngineInfo:
    return EngineInfo(
        url=url,
        engine="vllm",
        version="0.32.0",
        dialect="0.28",
        control_plane="vllm",
        backend="nccl",
        kind=EngineKind.STOCK,
        limits=ReceiverLimits(),
        **({"world_size": 1} | fields),
    )


@pytest.mark.parametrize("theirs", ["2.29.7", "2.29.7.post1", ""])
def test_one_release_passes_and_an_unknown_one_too(theirs, caplog) -> None:
    caplog.set_level(logging.INFO)
    nccl_version.check("2.29.7", [engine(nccl_version=theirs)])
    assert ("does not say which NCCL" in caplog.text) == (theirs == "")


@pytest.mark.parametrize("theirs", ["2.28.9", "2.29.6", "2.30.7"])
def test_another_release_is_refused_with_both_cures(theirs) -> None:
    with pytest.raises(CompatibilityError) as caught:
        nccl_version.check("2.29.7", [engine(), engine("http://10.0.0.2:8000", nccl_version=theirs)])
    error = caught.value
    assert f"NCCL {theirs} and this process 2.29.7" in error.message
    assert error.where.engine == "http://10.0.0.2:8000"
    assert f"=={theirs}" in error.hint
    assert "VLLM_NCCL_SO_PATH set to that of 2.29.7" in error.hint


@pytest.mark.parametrize(("cuda", "wheel"), [("13.0", "nvidia-nccl-cu13"), ("12.9", "nvidia-nccl-cu12")])
def test_the_cure_names_the_wheel_for_this_torch(cuda, wheel) -> None:
    assert f"`pip download --no-deps {wheel}==2.28.9`" in nccl_version.cures("2.29.7", "2.28.9", cuda=cuda)


@pytest.mark.skipif(not default_library(), reason="this torch brings no NCCL")
def test_our_release_can_be_asked_without_a_gpu() -> None:
    assert nccl_version.numbers(nccl_version.ours()) >= (2, 27)


def test_a_variable_that_differs_is_refused_by_name() -> None:
    info = engine(variables={"NCCL_CUMEM_ENABLE": "0", "NCCL_PROTO": "simple"})
    with pytest.raises(CompatibilityError, match="NCCL_CUMEM_ENABLE is '1' here and '0' in the engine"):
        nccl_environment.compare({"NCCL_CUMEM_ENABLE": "1", "NCCL_PROTO": "Simple"}, info)


def test_a_variable_that_only_one_side_sets_is_told(caplog) -> None:
    nccl_environment.compare({}, engine(variables={"NCCL_P2P_DISABLE": "1", "NCCL_DEBUG": "INFO"}))
    assert "NCCL_P2P_DISABLE is None here and '1' in the engine" in caplog.text
    assert "NCCL_DEBUG" not in caplog.text


def test_an_engine_that_tells_nothing_is_not_compared(caplog) -> None:
    nccl_environment.compare({"NCCL_ALGO": "Ring"}, engine())
    assert caplog.text == ""


def test_the_interface_is_handed_to_nccl_unless_one_is_set(monkeypatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")  # and it is put back to what it was, whatever is set below
    nccl_environment.use_interface("")
    assert "NCCL_SOCKET_IFNAME" not in os.environ
    nccl_environment.use_interface("eth1")
    nccl_environment.use_interface("eth2")
    assert os.environ["NCCL_SOCKET_IFNAME"] == "eth1"


@pytest.mark.parametrize(
    ("variables", "workers", "gpus"),
    [
        ({}, 2, ("0", "1")),
        ({"CUDA_VISIBLE_DEVICES": "3, 5,7"}, 2, ("3", "5")),
        ({"CUDA_VISIBLE_DEVICES": UUID}, 1, (UUID,)),
        ({"CUDA_VISIBLE_DEVICES": ""}, 1, ()),
    ],
)
def test_the_gpus_of_an_engine_follow_from_its_environment(variables, workers, gpus) -> None:
    assert nccl_environment.gpus_of(variables, workers) == gpus


@pytest.fixture
def gpu_one(monkeypatch) -> None:
    """This process sees GPUs 4 and 6 of the machine, and uses the second."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.delenv("NCCL_COMM_ID", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=UUID.removeprefix("GPU-")))


@pytest.mark.usefixtures("gpu_one")
def test_one_gpu_on_both_sides_is_refused_where_it_is_named_for_certain() -> None:
    for name in (UUID, "GPU-8f6e2c51"):
        with pytest.raises(ConfigurationError, match=UUID):
            nccl_environment.check([engine(variables={"CUDA_VISIBLE_DEVICES": name})], GPU)


@pytest.mark.usefixtures("gpu_one")
def test_one_gpu_on_both_sides_is_told_where_it_only_seems_so(caplog) -> None:
    nccl_environment.check([engine(variables={"CUDA_VISIBLE_DEVICES": "6"})], GPU)
    assert "GPU 6 seems to be the trainer's" in caplog.text


@pytest.mark.usefixtures("gpu_one")
def test_other_gpus_and_other_machines_pass(caplog) -> None:
    others = engine(variables={"CUDA_VISIBLE_DEVICES": "1,2,3"}, world_size=3)
    elsewhere = engine("http://10.0.0.9:8000", variables={"CUDA_VISIBLE_DEVICES": "6"})
    untold = engine()
    nccl_environment.check([others, elsewhere, untold], GPU)
    nccl_environment.check([engine(variables={"CUDA_VISIBLE_DEVICES": "6"})], CPU)
    assert "seems to be" not in caplog.text


def test_an_old_driver_is_explained_with_what_to_install() -> None:
    said = (
        "The NVIDIA driver on your system is too old (found version 12090). Please update your GPU driver by "
        "downloading and installing a new version"
    )
    reason = explain_no_cuda(said, "13.0")
    assert "the NVIDIA driver is for CUDA 12.9, and this torch was built for CUDA 13.0" in reason
    assert "install a torch for CUDA 12" in reason


def test_any_other_reason_is_torchs_own_first_sentence() -> None:
    said = "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU."
    assert explain_no_cuda(said, "13.0") == "Found no NVIDIA driver on your system"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_the_plane_says_why_it_can_not_be_used() -> None:
    assert nccl_plane.usable()


def test_without_a_library_the_plane_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(nccl_plane, "why_no_cuda", lambda: "")
    monkeypatch.setattr(nccl_plane, "default_library", lambda: "")
    monkeypatch.delenv("WEIGHTWIRE_NCCL_LIBRARY", raising=False)
    assert "pip install nvidia-nccl-cu13" in nccl_plane.usable()
    monkeypatch.setenv("WEIGHTWIRE_NCCL_LIBRARY", "/opt/libnccl.so.2")
    assert nccl_plane.usable() == ""
