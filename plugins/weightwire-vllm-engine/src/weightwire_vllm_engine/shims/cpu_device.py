"""Up to 0.22 a worker on a CPU has no device.

``CPUWorker`` leaves ``self.device`` at None, and start, update and finish of a weight update enter
``torch.device(self.device)``: a TypeError. vLLM sets it itself from 0.23. May go with the support of 0.22.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from weightwire_vllm_engine.shims.shim import Shim, after


def give_device(worker: Any) -> None:
    """Set the device of a worker that was made without one."""
    if worker.device is None:
        worker.device = torch.device("cpu")


def _apply() -> None:
    after(import_module("vllm.v1.worker.worker_base").WorkerBase, "__init__", hook=give_device)


SHIM = Shim("cpu_device", "cpu", "0.17", "0.23", "a CPU worker has no device", _apply)
