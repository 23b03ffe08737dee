"""A vLLM plugin, for tests alone, that lets vLLM's *stock* ``nccl`` weight receiver run in a CPU server.

It is on only where ``WEIGHTWIRE_STOCK_SHIM=1`` stands in the server's environment. What it swaps is the NCCL *library*
(:mod:`weightwire_testing.gloo_nccl`) and, for the receiver's modules alone, what "cuda" means in ``torch``
(:mod:`weightwire_testing.cpu_torch`). vLLM's communicator, its ``NCCLWeightTransferEngine``, its packed protocol and
its layerwise reload run as they were released, from 0.21 to 0.32 (seen), and meet our encoders byte for byte. The
other side is :mod:`weightwire_testing.stock_plane`.

Besides, it applies what vLLM has wrong on a CPU whatever the engine (:mod:`weightwire_vllm_engine.shims`).

All of it may go when vLLM can receive weights on a CPU by itself.
"""

from __future__ import annotations

import os
from importlib import import_module

from weightwire_testing.cpu_torch import CpuStream, Overlay, cpu_torch, on_stream
from weightwire_testing.gloo_nccl import library_class

SWITCH = "WEIGHTWIRE_STOCK_SHIM"

_COMMUNICATORS = "vllm.distributed.device_communicators"
_RECEIVER = "vllm.distributed.weight_transfer"
_RECEIVER_MODULES = ("nccl_engine", "nccl_common", "packed_tensor")

_done: list[str] = []


def register() -> None:
    """Patch this process if the switch is on. The entry point of ``vllm.general_plugins``; may be called again."""
    if os.environ.get(SWITCH) != "1" or _done:
        return
    platform = import_module("vllm.platforms").current_platform
    if platform.device_type != "cpu":
        raise RuntimeError(f"{SWITCH}=1 is for vLLM on a CPU, and this is {platform.device_type}: unset it.")
    version = str(import_module("vllm").__version__)
    _done.append(version)
    _swap_library()
    _swap_torch()
    import_module("weightwire_vllm_engine.shims").apply(version, on_any_device=False)


def _swap_library() -> None:
    pynccl = import_module(f"{_COMMUNICATORS}.pynccl")
    wrapper = import_module(f"{_COMMUNICATORS}.pynccl_wrapper")
    pynccl.NCCLLibrary = library_class(wrapper)  # type: ignore[attr-defined]
    # vLLM's own stand-in on a CPU lacks `cuda_stream`, which the communicator passes on.
    pynccl.current_stream = CpuStream  # type: ignore[attr-defined]


def _swap_torch() -> None:
    overlay = cpu_torch()
    for name in _RECEIVER_MODULES:
        try:
            module = import_module(f"{_RECEIVER}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{_RECEIVER}.{name}":
                raise
            continue  # nccl_common is there from 0.25
        if hasattr(module, "torch"):
            module.torch = overlay  # type: ignore[attr-defined]
        if hasattr(module, "current_platform"):  # after 0.32 the receiver asks the platform for its streams
            streams = Overlay(module.current_platform, Stream=CpuStream, current_stream=CpuStream, stream=on_stream)
            module.current_platform = streams  # type: ignore[attr-defined]
