"""On a CPU a tied output head keeps the old embedding after an update.

vLLM packs each weight anew for the CPU's matrix product and keeps the packed copy in ``layer.cpu_linear``. A head that
is tied to the embedding has a packed copy of its own, but no weight of its own is ever loaded into it, so the reload
skips it and the copy stays: every call answers 200, and the server samples with new layers under an old head. On a GPU
nothing is packed and the shared parameter serves both. Seen from 0.17 to 0.32, and the code of 0.33 is the same; may go
when vLLM packs tied heads after a reload.
"""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from typing import Any

import torch

from weightwire_vllm_engine.shims.shim import Shim, after, worker_class


def tied(model: torch.nn.Module, kind: type) -> list[Any]:
    """The layers of class *kind* whose weight is another layer's as well."""
    owners = Counter(id(_weight(layer)) for layer in model.modules())
    heads = [layer for layer in model.modules() if isinstance(layer, kind) and _weight(layer) is not None]
    return [head for head in heads if owners[id(_weight(head))] > 1]


def pack_again(worker: Any) -> None:
    """Pack the tied heads of a worker's model, as is done when a model is loaded."""
    heads = import_module("vllm.model_executor.layers.vocab_parallel_embedding").ParallelLMHead
    for head in tied(worker.model_runner.model, heads):
        head.quant_method.process_weights_after_loading(head)


def _weight(layer: torch.nn.Module) -> torch.nn.Parameter | None:
    return dict(layer.named_parameters(recurse=False)).get("weight")


def last_call(worker: type) -> str:
    """The method that ends an update; up to 0.20 the one that receives it is all of it."""
    return "finish_weight_update" if hasattr(worker, "finish_weight_update") else "update_weights"


def _apply() -> None:
    worker = worker_class()
    after(worker, last_call(worker), hook=pack_again)


SHIM = Shim("tied_head_cpu", "cpu", "0.17", "0.34", "a tied head keeps its packed copy of the old embedding", _apply)
