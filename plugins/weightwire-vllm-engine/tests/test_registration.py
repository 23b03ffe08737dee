"""What happens in a vLLM process when it loads the plugin, with vLLM's factory as it is in the releases."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest
import weightwire_vllm_engine
from weightwire_vllm_engine import registration, shims


class Factory:
    """The part of vLLM's factory that every release from 0.17 has."""

    def __init__(self) -> None:
        self._registry = {"nccl": "vLLM's nccl", "ipc": "vLLM's ipc"}

    def register_engine(self, name: str, module: str, attribute: str) -> None:
        if name in self._registry:
            raise ValueError(name)
        self._registry[name] = (module, attribute)


@pytest.fixture
def vllm(monkeypatch):
    """Pretend to be in a process of vLLM; ``start(version)`` says of which release."""
    factory = Factory()
    package, platforms = ModuleType("vllm"), ModuleType("vllm.platforms")
    envs, module = ModuleType("vllm.envs"), ModuleType(registration.FACTORY)
    platforms.current_platform = SimpleNamespace(device_type="cuda")
    envs.environment_variables = {}
    module.WeightTransferEngineFactory = factory
    front = ModuleType("vllm.v1.engine.async_llm")
    front.AsyncLLM = type("AsyncLLM", (), {"pause_generation": lambda self: None})
    parents = [ModuleType("vllm.distributed"), ModuleType("vllm.distributed.weight_transfer")]
    parents += [ModuleType("vllm.v1"), ModuleType("vllm.v1.engine")]
    for part in (package, platforms, envs, module, front, *parents):
        monkeypatch.setitem(sys.modules, part.__name__, part)
    monkeypatch.setattr(shims, "_applied", set())

    def start(version: str) -> Factory:
        package.__version__ = version
        weightwire_vllm_engine.register()
        return factory

    start.envs = envs
    return start


def test_the_engine_is_registered_by_name_and_not_imported(vllm):
    assert vllm("0.32.0")._registry["weightwire"] == ("weightwire_vllm_engine.engine", "WeightwireEngine")
    assert "weightwire_vllm_engine.engine" not in sys.modules


def test_loading_the_plugin_twice_is_harmless(vllm):
    vllm("0.32.0")
    assert len(vllm("0.32.0")._registry) == 3


@pytest.mark.parametrize("version", ["0.22.0", "0.32.0"])
def test_vllms_own_engines_are_left_alone_where_ours_has_a_name(vllm, version):
    registry = vllm(version)._registry
    assert (registry["nccl"], registry["ipc"]) == ("vLLM's nccl", "vLLM's ipc")
    assert vllm.envs.environment_variables == {}


@pytest.mark.parametrize("version", ["0.17.1", "0.21.0"])
def test_ipc_is_taken_over_and_announced_where_no_other_name_is_allowed_and_nccl_never(vllm, version):
    registry = vllm(version)._registry
    assert registry["ipc"] == registry["weightwire"]
    assert registry["nccl"] == "vLLM's nccl"
    assert vllm.envs.environment_variables["VLLM_WEIGHTWIRE_ENGINE"]() == "0.1.0"


def test_the_package_imports_without_vllm_and_without_torch():
    code = "import sys, weightwire_vllm_engine; assert not {'torch', 'vllm', 'weightwire'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
