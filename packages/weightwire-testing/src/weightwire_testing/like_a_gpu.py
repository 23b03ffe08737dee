"""A vLLM plugin, for tests alone, that lets a CPU server with our engine take weights as one on a GPU does.

It is on only where ``WEIGHTWIRE_LIKE_A_GPU=1`` stands in the server's environment.

* On a CPU vLLM packs the weight of each layer anew and throws the plain one away, so that nothing can land in it and
  every round takes vLLM's reload. The library that packs (oneDNN) is taken away; vLLM then multiplies with
  ``torch.nn.functional.linear``, which it keeps for where that is missing.
* A trainer may ask our engine for NCCL (by name, with a plane over :mod:`weightwire_testing.nccl_stand_in`): the engine
  then finds the same stand-in.
"""

from __future__ import annotations

import os
from importlib import import_module

SWITCH = "WEIGHTWIRE_LIKE_A_GPU"


def register() -> None:
    """Patch this process if the switch is on. The entry point of ``vllm.general_plugins``; may be called again."""
    if os.environ.get(SWITCH) == "1":
        import_module("vllm._custom_ops")._supports_onednn = False  # type: ignore[attr-defined] # noqa: SLF001
        import_module("weightwire_torch.nccl_plane").open_transport = _stand_in  # type: ignore[attr-defined]


def _stand_in(path: str) -> object:
    del path
    made: object = import_module("weightwire_testing.nccl_stand_in").stand_in()
    return made
