"""What a server tells of its NCCL."""

from __future__ import annotations

import msgspec
import pytest
from weightwire.vllm import nccl
from weightwire.vllm.server_info import ServerInfo

CU13 = "numpy==2.4.6\nnvidia-nccl-cu13==2.28.9\ntorch==2.11.0"


def told(*, env: dict[str, object] | None = None, **system: object) -> ServerInfo:
    config = {"model_config": {}, "parallel_config": {}}
    machine = {"torch_version": "2.11.0+cu130"} | system
    answer = {"vllm_config": config, "vllm_env": env or {}, "system_env": machine}
    return msgspec.json.decode(msgspec.json.encode(answer), type=ServerInfo)


@pytest.mark.parametrize(
    ("system", "version"),
    [
        ({"pip_packages": CU13}, "2.28.9"),
        ({"pip_packages": f"{CU13}\nnvidia-nccl-cu12==2.27.5", "cuda_compiled_version": "13.0"}, "2.28.9"),
        ({"pip_packages": f"{CU13}\nnvidia-nccl-cu12==2.27.5", "cuda_compiled_version": "12.9"}, "2.27.5"),
        ({"pip_packages": f"{CU13}\nnvidia-nccl-cu12==2.27.5"}, ""),
        ({"pip_packages": "torch==2.11.0+cpu"}, ""),
        ({"pip_packages": None}, ""),
        ({"pip_packages": CU13, "torch_version": "2.13.0+cu130"}, ""),  # another environment's list
        ({"pip_packages": CU13, "torch_version": None}, ""),
        ({"pip_packages": "nvidia-nccl-cu13==2.28.9"}, ""),
        ({}, ""),
    ],
)
def test_the_release_is_that_of_the_wheel_beside_torch(system, version) -> None:
    assert nccl.version(told(**system)) == version


@pytest.mark.parametrize(
    ("path", "version"), [("/opt/libnccl.so.2", ""), ("/opt/libnccl.so.2.30.7", "2.30.7"), (None, "2.28.9")]
)
def test_a_library_that_is_named_hides_the_wheels(path, version) -> None:
    assert nccl.version(told(env={"VLLM_NCCL_SO_PATH": path}, pip_packages=CU13)) == version


def test_a_server_that_gathers_nothing_tells_nothing() -> None:
    answer = b'{"vllm_config": {"model_config": {}, "parallel_config": {}}}'
    server = msgspec.json.decode(answer, type=ServerInfo)
    assert nccl.version(server) == ""
    assert nccl.variables(server) == {}


def test_only_what_a_transport_reads_is_kept_of_the_environment() -> None:
    said = (
        "CUDA_HOME=/usr/local/cuda\nNCCL_CUMEM_ENABLE=0\nCUDA_VISIBLE_DEVICES=1,2\nTORCH_NCCL_X=1\nNCCL_ALGO=^NVLS=1\n"
    )
    assert nccl.variables(told(env_vars=said)) == {
        "NCCL_CUMEM_ENABLE": "0",
        "CUDA_VISIBLE_DEVICES": "1,2",
        "NCCL_ALGO": "^NVLS=1",
    }
