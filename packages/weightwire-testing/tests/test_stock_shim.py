"""The stand-in for NCCL meets the stock plane: vLLM's own sequence of calls, over real gloo."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest
import torch
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import WeightwireError
from weightwire.messages import (
    ChannelSpec,
    EngineInfo,
    EngineKind,
    Manifest,
    PackGeometry,
    ReceiverLimits,
    TensorMeta,
    TransferPlan,
    Window,
)
from weightwire.planes import SingleRank
from weightwire_testing import gloo_id, stock_shim
from weightwire_testing.gloo_nccl import TIMEOUT_VARIABLE, library_class
from weightwire_testing.stock_plane import StockShimPlane
from weightwire_torch.nccl_rendezvous import KEY, pickled_unique_id

SECONDS = 10.0
TENSORS = (torch.arange(6, dtype=torch.float32), torch.arange(5, dtype=torch.bfloat16))
METAS = tuple(TensorMeta(f"t{i}", str(t.dtype).removeprefix("torch."), tuple(t.shape)) for i, t in enumerate(TENSORS))
MANIFEST = Manifest(METAS, ((0, 2),))
PACKED = PackGeometry(packed=True, buffer_bytes=2**20, num_buffers=2)
FLOAT32, UINT8, SUM = 7, 1, 0  # NCCL's own numbers


class DataTypes:
    """As in vLLM: NCCL's number for a torch dtype, or ValueError."""

    _table: ClassVar = {torch.float32: FLOAT32, torch.uint8: UINT8}

    @classmethod
    def from_torch(cls, dtype):
        if dtype not in cls._table:
            raise ValueError(dtype)
        return cls._table[dtype]


def wrapper() -> ModuleType:
    """The part of vLLM's ``pynccl_wrapper`` that is used."""
    module = ModuleType("pynccl_wrapper")
    module.NCCLLibrary = type("NCCLLibrary", (), {"ncclCommCount": lambda self: self._funcs["ncclCommCount"]})
    module.ncclDataTypeEnum = DataTypes
    module.ncclRedOpTypeEnum = SimpleNamespace(ncclSum=SUM)
    return module


class Source:
    ranks = SingleRank()

    def manifest(self) -> Manifest:
        return MANIFEST

    def gather(self, group: int) -> Sequence[object]:
        return TENSORS


def engine(version: str) -> EngineInfo:
    return EngineInfo(
        url="http://127.0.0.1:1",
        engine="vllm",
        version=version,
        dialect="0.28",
        control_plane="vllm",
        backend="nccl",
        kind=EngineKind.STOCK,
        world_size=1,
        limits=ReceiverLimits(),
    )


def spec(*versions: str) -> ChannelSpec:
    engines = tuple(engine(version) for version in versions)
    return ChannelSpec(manifest=MANIFEST, geometry=PACKED, world_size=2, engines=engines, timeout=SECONDS)


@pytest.fixture
def plane():
    made = StockShimPlane()
    yield made
    made.abort()


def pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def worker(unique_id: bytes) -> torch.Tensor:
    """What vLLM's communicator and its packed receiver do, call by call."""
    library = library_class(wrapper())()
    comm = library.ncclCommInitRank(2, unique_id, 1)
    warm_up = torch.zeros(1)
    library.ncclAllReduce(pointer(warm_up), pointer(warm_up), 1, FLOAT32, SUM, comm, None)
    assert warm_up.item() == 1.0
    received = torch.zeros(MANIFEST.nbytes, dtype=torch.uint8)
    library.ncclBroadcast(pointer(received), pointer(received), received.numel(), UINT8, 0, comm, None)
    library.ncclCommAbort(comm)
    return received


def test_a_worker_receives_the_pack_that_the_plane_sends(plane):
    deadline = Deadline.after(SECONDS)
    met = plane.prepare(spec("0.28.0"), deadline)
    call = Call(lambda: worker(gloo_id.encode(met.address, met.port)), doing="receiving")
    plane.join(deadline, lambda: None)
    plan = TransferPlan(round_id="r", version="1", manifest=MANIFEST, windows=(Window(0, 0, 2),), geometry=PACKED)
    plane.send(plan, plan.windows[0], Source(), deadline, lambda: None)
    received = call.result(deadline)
    assert torch.equal(received, torch.cat([t.view(torch.uint8) for t in TENSORS]))


def test_before_0_30_the_workers_find_the_id_in_the_store_under_vllms_key(plane):
    met = plane.prepare(spec("0.22.1", "0.32.0"), Deadline.after(SECONDS))
    assert (met.unique_id, met.port > 0) == (b"", True)
    assert plane._group.store.get(KEY) == pickled_unique_id(gloo_id.encode(met.address, met.port))


def test_from_0_30_the_id_travels_in_the_call_and_no_store_is_named(plane):
    met = plane.prepare(spec("0.30.0", "0.32.0"), Deadline.after(SECONDS))
    assert met.port == 0
    assert gloo_id.decode(met.unique_id) == ("127.0.0.1", plane._group.port)


def test_an_operation_that_no_weight_receiver_needs_fails_loudly():
    library = library_class(wrapper())()
    with pytest.raises(NotImplementedError, match="sums only"):
        library.ncclAllReduce(None, None, 1, FLOAT32, SUM + 1, None, None)
    with pytest.raises(NotImplementedError, match="rank 0 only"):
        library.ncclBroadcast(None, None, 1, FLOAT32, 1, None, None)
    with pytest.raises(AttributeError, match="_funcs"):
        library.ncclCommCount()


def test_a_worker_does_not_wait_for_ever_for_a_trainer_that_is_gone(plane, monkeypatch):
    met = plane.prepare(spec("0.28.0"), Deadline.after(SECONDS))
    unique_id = gloo_id.encode(met.address, met.port)
    plane.abort()
    monkeypatch.setenv(TIMEOUT_VARIABLE, "0.5")
    with pytest.raises(WeightwireError):
        library_class(wrapper())().ncclCommInitRank(2, unique_id, 1)


@pytest.fixture
def vllm(monkeypatch):
    """A process of vLLM 0.28, which has no module ``nccl_common`` in this telling."""
    modules = {
        "vllm": {"__version__": "0.28.0"},
        "vllm.platforms": {"current_platform": SimpleNamespace(device_type="cpu")},
        "vllm.distributed": {"__path__": []},
        "vllm.distributed.device_communicators": {"__path__": []},
        "vllm.distributed.device_communicators.pynccl": {"NCCLLibrary": "NCCL", "current_stream": "a stream"},
        "vllm.distributed.device_communicators.pynccl_wrapper": vars(wrapper()),
        "vllm.distributed.weight_transfer": {"__path__": []},
        "vllm.distributed.weight_transfer.nccl_engine": {"torch": torch},
        "vllm.distributed.weight_transfer.packed_tensor": {
            "torch": torch,
            "current_platform": SimpleNamespace(Stream="CUDA's", name="cpu"),
        },
    }
    for name, attributes in modules.items():
        module = ModuleType(name)
        vars(module).update({k: v for k, v in attributes.items() if not k.startswith("__") or k in attributes})
        module.__name__ = name
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(stock_shim, "_done", [])
    monkeypatch.setattr(
        "weightwire_vllm_engine.shims.apply",
        lambda version, *, on_any_device: stock_shim._done.append((version, on_any_device)),
    )
    return SimpleNamespace(**{name.rpartition(".")[2]: sys.modules[name] for name in modules})


def test_the_shim_does_nothing_unless_it_is_switched_on(vllm, monkeypatch):
    monkeypatch.delenv(stock_shim.SWITCH, raising=False)
    stock_shim.register()
    assert vllm.pynccl.NCCLLibrary == "NCCL"
    assert vllm.nccl_engine.torch is torch


def test_the_shim_swaps_the_library_and_what_cuda_means_once(vllm, monkeypatch):
    monkeypatch.setenv(stock_shim.SWITCH, "1")
    stock_shim.register()
    stock_shim.register()
    assert vllm.pynccl.NCCLLibrary.__name__ == "GlooLibrary"
    assert vllm.nccl_engine.torch.empty(1, device="cuda").device.type == "cpu"
    assert vllm.packed_tensor.current_platform.Stream().cuda_stream == 0
    assert vllm.packed_tensor.current_platform.name == "cpu"
    assert stock_shim._done == ["0.28.0", ("0.28.0", False)]


def test_the_shim_refuses_a_server_on_a_gpu(vllm, monkeypatch):
    vllm.platforms.current_platform.device_type = "cuda"
    monkeypatch.setenv(stock_shim.SWITCH, "1")
    with pytest.raises(RuntimeError, match="this is cuda: unset it"):
        stock_shim.register()
