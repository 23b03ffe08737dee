"""Which models may be loaded by a plan at all: those whose parameters are all that their forward reads of the weights.

vLLM prepares the weights of some layers once they are loaded: it quantises, lays experts out anew, packs for a CPU, or
multiplies matrices together (``process_weights_after_loading``). What comes of it may lie anywhere, so a comparison of
parameters does not find out. So the known plain ones are named here, and everything else takes vLLM's reload, which
knows how to do it again.
"""

from __future__ import annotations

from typing import Any

import torch

from weightwire_vllm_engine.plan import UnplannableError

_PLAIN_METHODS = frozenset(
    {
        "vllm.model_executor.layers.linear.UnquantizedLinearMethod",
        "vllm.model_executor.layers.vocab_parallel_embedding.UnquantizedEmbeddingMethod",
    }
)
"""They prepare something on a CPU alone (0.25 to 0.33), which :func:`_packed` tells."""

_PLAIN_LAYERS = frozenset({"vllm.model_executor.layers.attention.attention.Attention"})
"""They prepare the scales of a quantised cache, and no weights (0.25 to 0.33)."""

_PREPARE = "process_weights_after_loading"


def check(model: torch.nn.Module) -> None:
    """Raise unless all that *model* reads of its weights are its parameters.

    Raises:
        UnplannableError: a module prepares something of them, or may; names it.
    """
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if method is not None and _path(method) not in _PLAIN_METHODS:
            raise UnplannableError(f"{name}, a {type(module).__name__}, is prepared by {type(method).__name__}")
        if hasattr(module, _PREPARE) and _path(module) not in _PLAIN_LAYERS:
            raise UnplannableError(f"{name}, a {type(module).__name__}, prepares its weights by itself")
        if getattr(getattr(module, "impl", None), "sinks", None) is not None:
            raise UnplannableError(f"{name}, a {type(module).__name__}, keeps sinks, which some backends convert")
        if _packed(module):
            raise UnplannableError(f"{name}, a {type(module).__name__}, keeps its weight packed for the CPU")


def _packed(module: torch.nn.Module) -> bool:
    """Whether vLLM keeps a copy of the weight in the function that multiplies with it on a CPU.

    A function that closes over nothing holds nothing; ``torch.nn.functional.linear`` is no Python function.
    """
    multiply: Any = vars(module).get("cpu_linear")
    return bool(getattr(multiply, "__closure__", None))


def _path(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
