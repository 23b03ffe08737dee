"""On a CPU, from 0.28, the experts of a mixture are packed only once.

``UnquantizedFusedMoEMethod._setup_kernel`` packs the experts for the CPU only while ``moe_kernel`` is None, that is
when the model is loaded. An update then writes plain rows into packed storage: every call answers 200, the output is
neither the old nor the new model's, and sending the old weights again does not mend it. So the kernel is taken away
while an update is open. Seen on 0.28 and 0.32, and the code of 0.33 is the same; may go when vLLM packs on an update.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from weightwire_vllm_engine.shims.shim import Shim, after, worker_class

_kernels: WeakKeyDictionary[object, object] = WeakKeyDictionary()
"""The kernels that were taken away, by the method they belong to."""


def take_kernels(worker: Any) -> None:
    """Let the experts be packed again when their weights are complete."""
    for method in _methods(worker):
        if method.moe_kernel is not None:
            _kernels[method] = method.moe_kernel
            method.moe_kernel = None


def put_back(worker: Any) -> None:
    """Give a layer that got no new weights the kernel that it had; the others made themselves a new one."""
    for method in _methods(worker):
        if method.moe_kernel is None and method in _kernels:
            method.moe_kernel = _kernels[method]


def _methods(worker: Any) -> Iterator[Any]:
    methods = (getattr(layer, "quant_method", None) for layer in worker.model_runner.model.modules())
    return (method for method in methods if hasattr(method, "moe_kernel"))


def _apply() -> None:
    after(worker_class(), "start_weight_update", hook=take_kernels)
    after(worker_class(), "finish_weight_update", hook=put_back)


SHIM = Shim("moe_cpu", "cpu", "0.28", "0.34", "the experts are packed only once", _apply)
