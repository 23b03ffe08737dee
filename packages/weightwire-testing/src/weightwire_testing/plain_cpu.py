"""A vLLM plugin, for tests alone, that lets a CPU server keep its weights as a GPU server does: plain.

On a CPU vLLM packs the weight of each layer anew and throws the plain one away, so that nothing can land in it and
every round takes vLLM's reload. It is on only where ``WEIGHTWIRE_PLAIN_CPU=1`` stands in the server's environment. What
it takes away is the library that packs (oneDNN); vLLM then multiplies with ``torch.nn.functional.linear``, which it
keeps for where that is missing.
"""

from __future__ import annotations

import os
from importlib import import_module

SWITCH = "WEIGHTWIRE_PLAIN_CPU"


def register() -> None:
    """Take the library away if the switch is on. The entry point of ``vllm.general_plugins``; may be called again."""
    if os.environ.get(SWITCH) == "1":
        import_module("vllm._custom_ops")._supports_onednn = False  # type: ignore[attr-defined] # noqa: SLF001
