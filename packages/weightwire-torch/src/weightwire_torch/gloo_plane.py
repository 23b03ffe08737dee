"""The data plane over gloo: bytes through host memory, for engines that run our plugin, on CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from weightwire.deadlines import Deadline
from weightwire.messages import ChannelSpec, Rendezvous

from weightwire_torch import gloo
from weightwire_torch.addresses import address_for
from weightwire_torch.broadcasting import Flight, Ready, copy_on_host
from weightwire_torch.gloo_group import GlooGroup
from weightwire_torch.pump import Pump
from weightwire_torch.pumped_plane import PumpedPlane
from weightwire_torch.ring import Ring


def usable() -> str:
    """Why gloo can't be used here; empty if it can."""
    if dist.is_available() and dist.is_gloo_available():
        return ""
    return "this torch was built without gloo"


class GlooBroadcaster:
    """The pump's transport."""

    depth = gloo.CONNECTIONS
    """A small pack is one piece, and goes over one of the connections."""

    def __init__(self, group: GlooGroup) -> None:
        """Send as rank 0 of *group*."""
        self._group = group

    def place(self, targets: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
        """Copy; done when it returns."""
        copy_on_host(targets, tensors)

    def ready(self) -> Ready:
        """Nothing is pending in host memory."""
        return _at_once

    def broadcast(self, flat: torch.Tensor, ready: Ready, deadline: Deadline) -> Flight:
        """Begin to broadcast."""
        ready()
        return self._group.begin(flat, deadline)

    def abort(self) -> None:
        """Break the group."""
        self._group.abort()


class GlooPlane(PumpedPlane[GlooGroup]):
    """Implements :class:`~weightwire.planes.DataPlane`."""

    spoken = "gloo"

    def prepare(self, spec: ChannelSpec, deadline: Deadline) -> Rendezvous:
        """Listen, and allocate the ring."""
        self.close(deadline)
        address = spec.address or address_for(info.url for info in spec.engines)
        ring = Ring.fitting(spec.manifest.tensors, spec.geometry, slots=GlooBroadcaster.depth + 1)
        self._group = GlooGroup.host(
            address, spec.port, world_size=spec.world_size, timeout=spec.timeout, interface=spec.interface
        )
        self._pump = Pump(GlooBroadcaster(self._group), ring)
        return Rendezvous(
            address=address,
            port=self._group.port,
            world_size=spec.world_size,
            timeout=spec.timeout,
            extra={"transport": "gloo"},
        )


def _at_once() -> None:
    """Bytes in host memory need no waiting for."""
