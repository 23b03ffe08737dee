"""The plugin that lets a CPU server take weights as one on a GPU: on by its switch alone."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from weightwire_testing import like_a_gpu
from weightwire_torch import nccl_plane


@pytest.fixture
def operations(monkeypatch):
    """vLLM's module of operations, and the way to a transport, both put back."""
    module = ModuleType("vllm._custom_ops")
    module._supports_onednn = True
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(nccl_plane, "open_transport", nccl_plane.open_transport)
    return module


def test_nothing_is_changed_unless_the_switch_is_on(operations, monkeypatch):
    monkeypatch.delenv(like_a_gpu.SWITCH, raising=False)
    before = nccl_plane.open_transport
    like_a_gpu.register()
    assert (operations._supports_onednn, nccl_plane.open_transport) == (True, before)


def test_weights_stay_plain_and_nccl_is_stood_in_for(operations, monkeypatch):
    monkeypatch.setenv(like_a_gpu.SWITCH, "1")
    like_a_gpu.register()
    like_a_gpu.register()
    assert operations._supports_onednn is False
    assert nccl_plane.open_transport("/some/libnccl.so.2").device.torch_device.type == "cpu"
