"""The CPU in place of the "cuda" that vLLM's weight receiver names: an overlay over its modules' ``torch``."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch


class CpuStream:
    """A stream on which everything has already happened."""

    cuda_stream = 0
    """The handle that vLLM's ``pynccl`` reads."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Take whatever a stream takes."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def wait_stream(self, stream: object) -> None:
        """Nothing to wait for."""


class Overlay:
    """*base* with some attributes replaced; everything else is read from *base*, which stays as it is."""

    def __init__(self, base: object, **replaced: object) -> None:
        """Replace."""
        self.__dict__.update(replaced)
        self._base = base

    def __getattr__(self, name: str) -> Any:
        """Fall through."""
        return getattr(self._base, name)


def on_stream(stream: object) -> AbstractContextManager[object]:
    """The context of a stream: none."""
    return contextlib.nullcontext(stream)


def empty(*size: Any, **kwargs: Any) -> torch.Tensor:
    """``torch.empty`` on the CPU where CUDA was asked for."""
    if torch.device(kwargs.get("device") or "cpu").type == "cuda":
        kwargs["device"] = "cpu"
    return torch.empty(*size, **kwargs)


def cpu_torch() -> Overlay:
    """What the weight-transfer modules see as ``torch``.

    * ``accelerator.current_device_index`` raises without an accelerator (0.21 to 0.33). A device instead of an index is
      what makes ``PyNcclCommunicator``, which takes either, work on tensors of the CPU.
    * ``empty(device="cuda")`` is hard-coded in the receiver up to 0.24; later it asks for the worker's device.
    * ``cuda.Stream``, ``stream`` and ``current_stream`` are used up to 0.32. vLLM's CPU worker replaces some of them
      for its whole process (from 0.23), but its stand-in has never had ``cuda_stream``, has no ``synchronize`` in 0.23
      to 0.25, and ``torch.cuda.stream`` is left alone there.
    """
    return Overlay(
        torch,
        empty=empty,
        accelerator=Overlay(torch.accelerator, current_device_index=lambda: torch.device("cpu")),
        cuda=Overlay(torch.cuda, Stream=CpuStream, current_stream=CpuStream, stream=on_stream),
    )
