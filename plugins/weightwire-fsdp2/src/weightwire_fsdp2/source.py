"""The weight source for sharded modules."""

from __future__ import annotations

import torch
from weightwire.options import Options
from weightwire_torch.sources import ModuleSource

from weightwire_fsdp2.dtensors import DTensors


class Fsdp2Source(ModuleSource):
    """Gathers a layer at a time, on every rank, whatever the mesh: FSDP2, HSDP, with tensor parallelism, offloaded."""

    def __init__(self, model: torch.nn.Module, options: Options, *, dtype: str = "") -> None:
        """Look at nothing yet.

        Args:
            model: the module, in whatever wrappers.
            options: the session's.
            dtype: cast floating tensors to this dtype before they are gathered: with float32 masters of a bfloat16
                model half the traffic among ranks. Empty to gather them as they are.
        """
        super().__init__(model, options, dtype=dtype, sharding=DTensors(dtype))
