"""From DTensors to whole tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch.distributed._functional_collectives import wait_tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate
from weightwire_torch.dtypes import may_become, torch_dtype
from weightwire_torch.manifest import is_dtensor
from weightwire_torch.sharding import Unsharded


class DTensors(Unsharded):
    """Implements :class:`~weightwire_torch.sharding.Sharding`; tensors that are no DTensors are whole already."""

    collective = True

    def __init__(self, dtype: str = "") -> None:
        """Gather floating tensors in *dtype*; empty for their own."""
        self._dtype = torch_dtype(dtype) if dtype else None

    def settle(self, model: torch.nn.Module) -> None:
        """Free what a forward without a backward left whole: cast copies, while the shards are the masters.

        The root of a model keeps its parameters whole after the forward, for the backward that mostly follows.
        """
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def form(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The shape of a DTensor is that of the whole."""
        if not is_dtensor(tensor) or tensor.is_meta:
            return super().form(name, tensor)
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

    def whole(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Begin to gather all of a group, then wait for each."""
        pending = [self._begin(t) if isinstance(t, DTensor) else t for t in tensors]
        return [_end(t) if isinstance(t, DTensor) else t.detach() for t in pending]

    @torch.no_grad()
    def _begin(self, tensor: DTensor) -> DTensor:
        shard = _on_device_of_mesh(tensor)
        if self._dtype is not None and may_become(shard.dtype, self._dtype):
            shard = cast("DTensor", shard.to(self._dtype))
        return shard.redistribute(placements=[Replicate()] * shard.device_mesh.ndim, async_op=True)


def _on_device_of_mesh(tensor: DTensor) -> DTensor:
    """With CPU offload shards lie in host memory, and the mesh's group may know accelerators alone."""
    local = tensor.to_local()
    if local.device.type == tensor.device_mesh.device_type:
        return tensor
    moved = local.to(torch.device(tensor.device_mesh.device_type))
    return DTensor.from_local(
        moved, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


@torch.no_grad()
def _end(tensor: DTensor) -> torch.Tensor:
    """The whole tensor, complete: the current stream waits for the collective's."""
    return cast("torch.Tensor", wait_tensor(tensor.to_local()))  # type: ignore[no-untyped-call] # torch's
