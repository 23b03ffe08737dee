"""The weight source for DeepSpeed engines."""

from __future__ import annotations

import torch
from weightwire.errors import ManifestError
from weightwire.options import Options
from weightwire_torch.claims import is_a
from weightwire_torch.sources import ModuleSource

from weightwire_deepspeed.partitions import Partitions


class DeepSpeedSource(ModuleSource):
    """Gathers a layer at a time on every rank with ZeRO-3; with stages 0 to 2 the weights are whole on all of them.

    What is sent is what the engine computes with: bfloat16 of a bfloat16 engine, not its float32 masters.
    """

    def __init__(self, model: torch.nn.Module, options: Options, *, dtype: str = "") -> None:
        """Look at nothing yet.

        Args:
            model: the engine, or the module in it.
            options: the session's.
            dtype: send floating tensors in this dtype; empty for their own.

        Raises:
            ManifestError: the engine is pipeline-parallel, so that no rank knows all layers.
        """
        if is_a(model, "deepspeed.runtime.pipe.engine:PipelineEngine"):
            raise ManifestError(
                "A pipeline-parallel DeepSpeed engine has only its own stage's layers, under numbers for names.",
                hint="train with ZeRO-3 instead of pipeline stages",
            )
        super().__init__(model, options, dtype=dtype, sharding=Partitions())
