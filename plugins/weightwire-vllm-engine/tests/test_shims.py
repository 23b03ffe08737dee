"""The shims: which release gets which, and what each mends, on stand-ins with the shape of vLLM's objects."""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from weightwire_vllm_engine import shims
from weightwire_vllm_engine.shims import accelerator_sync, cpu_device, moe_cpu, prompt_pause, tied_head_cpu
from weightwire_vllm_engine.shims.shim import ANY_DEVICE, after


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("0.17.1", {"cpu_device", "tied_head_cpu"}),
        ("0.20.2", {"accelerator_sync", "cpu_device", "tied_head_cpu"}),
        ("0.21.0", {"cpu_device", "tied_head_cpu"}),
        ("0.22.1+cpu", {"cpu_device", "tied_head_cpu"}),
        ("0.25.1", {"tied_head_cpu"}),
        ("0.28.0", {"moe_cpu", "tied_head_cpu"}),
        ("0.32.0", {"moe_cpu", "tied_head_cpu"}),
    ],
)
def test_a_release_gets_the_shims_it_needs_and_no_others(version, names):
    assert {shim.name for shim in shims.needed(version, "cpu")} == names


def test_a_gpu_gets_only_what_has_nothing_to_do_with_the_device():
    assert shims.needed("0.22.1", "cuda") == ()
    assert shims.needed("0.22.1", "cuda", ANY_DEVICE) == (prompt_pause.SHIM,)


class AsyncLLM:
    """The part of vLLM's front end that pauses: it sleeps for as long as a test lets it."""

    def __init__(self, *, refuses: str = "") -> None:
        self.refuses = refuses
        self.engine_core = self
        self.rested = self.awake = False
        self.wake = asyncio.Event()

    async def pause_scheduler_async(self, mode, *, clear_cache):
        await asyncio.sleep(0)
        if self.refuses:
            raise RuntimeError(self.refuses)
        self.rested = True

    async def pause_generation(self, *, mode="abort", clear_cache=True):
        await self.engine_core.pause_scheduler_async(mode, clear_cache=clear_cache)
        await self.wake.wait()
        self.awake = True


PAUSE = prompt_pause.prompt(AsyncLLM.pause_generation)


def test_a_pause_that_keeps_requests_is_answered_when_the_engine_rests():
    async def pause():
        engine = AsyncLLM()
        await PAUSE(engine, mode="keep", clear_cache=False)
        assert (engine.rested, engine.awake) == (True, False)
        engine.wake.set()
        await asyncio.sleep(0.01)
        assert engine.awake  # vLLM's own goes on to its end

    asyncio.run(asyncio.wait_for(pause(), 10))


@pytest.mark.parametrize("given", [{"mode": "wait"}, {"mode": "abort"}, {}])
def test_another_pause_is_answered_as_ever(given):
    async def pause():
        engine = AsyncLLM()
        asyncio.get_running_loop().call_later(0.01, engine.wake.set)
        await PAUSE(engine, **given)
        assert engine.awake

    asyncio.run(asyncio.wait_for(pause(), 10))


def test_a_pause_that_fails_says_so():
    async def pause():
        await PAUSE(AsyncLLM(refuses="no scheduler"), mode="keep")

    with pytest.raises(RuntimeError, match="no scheduler"):
        asyncio.run(asyncio.wait_for(pause(), 10))


def test_a_hook_runs_after_each_call_that_succeeds():
    class Worker:
        def finish(self, number, *, fail=False):
            if fail:
                raise ValueError(number)
            return number

    seen = []
    after(Worker, "finish", hook=seen.append)
    worker = Worker()
    assert worker.finish(3) == 3
    with pytest.raises(ValueError, match="4"):
        worker.finish(4, fail=True)
    assert seen == [worker]
    assert Worker.finish.__name__ == "finish"


def test_a_worker_without_a_device_gets_one_and_another_keeps_its_own():
    bare, gpu = SimpleNamespace(device=None), SimpleNamespace(device=torch.device("meta"))
    cpu_device.give_device(bare)
    cpu_device.give_device(gpu)
    assert (bare.device, gpu.device) == (torch.device("cpu"), torch.device("meta"))


def test_waiting_for_an_accelerator_that_is_not_there_does_nothing(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "synchronize", torch.accelerator.synchronize)
    accelerator_sync.SHIM.apply()
    torch.accelerator.synchronize()
    torch.accelerator.synchronize(None)


class Packing:
    """A quant method that packs a head's weight, as vLLM's does on a CPU."""

    def process_weights_after_loading(self, layer):
        layer.packed = layer.weight.detach().clone()


class Head(torch.nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight
        self.quant_method = Packing()


class Language(torch.nn.Module):
    def __init__(self, *, tie):
        super().__init__()
        self.embed = torch.nn.Embedding(4, 2)
        self.lm_head = Head(self.embed.weight if tie else torch.nn.Parameter(torch.zeros(4, 2)))


def worker_of(model: torch.nn.Module) -> SimpleNamespace:
    return SimpleNamespace(model_runner=SimpleNamespace(model=model))


@pytest.fixture
def head_class(monkeypatch):
    """vLLM's module with the class of output heads."""
    module = ModuleType("vllm.model_executor.layers.vocab_parallel_embedding")
    module.ParallelLMHead = Head
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("vllm", "vllm.model_executor", "vllm.model_executor.layers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))


@pytest.mark.usefixtures("head_class")
def test_a_tied_head_is_packed_again_from_the_new_embedding():
    model = Language(tie=True)
    with torch.no_grad():
        model.embed.weight.fill_(7.0)
    tied_head_cpu.pack_again(worker_of(model))
    assert torch.equal(model.lm_head.packed, torch.full((4, 2), 7.0))


@pytest.mark.usefixtures("head_class")
def test_an_untied_head_is_left_to_vllm():
    model = Language(tie=False)
    tied_head_cpu.pack_again(worker_of(model))
    assert not hasattr(model.lm_head, "packed")


def test_a_head_is_packed_when_the_update_ends_which_up_to_0_20_is_its_only_call():
    class TwoCalls:
        def update_weights(self): ...

    class FourPhases(TwoCalls):
        def finish_weight_update(self): ...

    assert tied_head_cpu.last_call(TwoCalls) == "update_weights"
    assert tied_head_cpu.last_call(FourPhases) == "finish_weight_update"


class Experts(torch.nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.quant_method = Method(kernel)


class Method:
    """Hashed by identity, as vLLM's methods are."""

    def __init__(self, kernel):
        self.moe_kernel = kernel


def test_experts_lose_their_kernel_while_an_update_is_open_and_a_layer_without_news_gets_it_back():
    fed, unfed = Experts("old fed"), Experts("old unfed")
    worker = worker_of(torch.nn.ModuleList([fed, unfed, torch.nn.Linear(1, 1)]))
    moe_cpu.take_kernels(worker)
    assert fed.quant_method.moe_kernel is None
    fed.quant_method.moe_kernel = "new fed"  # what vLLM does once the layer's weights are complete
    moe_cpu.put_back(worker)
    assert (fed.quant_method.moe_kernel, unfed.quant_method.moe_kernel) == ("new fed", "old unfed")


def test_the_kernel_survives_an_update_that_failed_and_the_one_that_flushes_it():
    layer = Experts("old")
    worker = worker_of(torch.nn.ModuleList([layer]))
    moe_cpu.take_kernels(worker)  # this one fails, and finish is never reached
    moe_cpu.take_kernels(worker)
    moe_cpu.put_back(worker)
    assert layer.quant_method.moe_kernel == "old"


def test_the_server_without_experts_has_nothing_to_take():
    worker = worker_of(torch.nn.Linear(1, 1))
    moe_cpu.take_kernels(worker)
    moe_cpu.put_back(worker)
