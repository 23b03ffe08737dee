"""From 0.18 to 0.20 an update on a CPU ends in an error, although the weights were loaded.

``update_weights`` closes with ``torch.accelerator.synchronize()``, which raises where there is no accelerator. From
0.21 vLLM makes it do nothing on a CPU, as is done here. May go with the support of 0.20.
"""

from __future__ import annotations

import torch

from weightwire_vllm_engine.shims.shim import Shim


def _nothing(device: object = None, /) -> None:
    """Wait for nothing: on a CPU every operation is over when it returns."""


def _apply() -> None:
    torch.accelerator.synchronize = _nothing


SHIM = Shim("accelerator_sync", "cpu", "0.18", "0.21", "torch.accelerator.synchronize() raises on a CPU", _apply)
