"""The data plane over NCCL: byte for byte what vLLM's own ``nccl`` engine receives, without vLLM; and to our engine."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

import torch
from weightwire.deadlines import Deadline
from weightwire.errors import ChannelError
from weightwire.messages import ChannelSpec, EngineKind, Rendezvous

from weightwire_torch import nccl_environment, nccl_version
from weightwire_torch.addresses import address_for
from weightwire_torch.broadcasting import Flight, Ready
from weightwire_torch.lifeline import Lifeline
from weightwire_torch.listening import Place
from weightwire_torch.nccl_device import CudaDevice, why_no_cuda
from weightwire_torch.nccl_group import NcclGroup, Transport
from weightwire_torch.nccl_library import NcclLibrary
from weightwire_torch.nccl_path import default_library
from weightwire_torch.pump import Pump
from weightwire_torch.pumped_plane import PumpedPlane
from weightwire_torch.ring import Ring

log = logging.getLogger(__name__)

NO_STORE = -1
"""As the option `port`: listen nowhere, and let the control plane hand the communicator's id over (vLLM 0.30)."""

SMALL_PACK = 256 * 1024 * 1024

SLOTS, SLOTS_OF_LARGE_PACKS = 4, 2
"""Packs that may be under way: two on the wire, one behind them, one being packed. Beyond :data:`SMALL_PACK` bytes one
on the wire and one being packed, which hides the packing as well and takes gigabytes less of the trainer's GPU."""

OpenTransport = Callable[[str], Transport]
"""Called with the path of a library, empty for the default."""


def usable() -> str:
    """Why NCCL can't be used here; empty if it can."""
    reason = why_no_cuda()
    if reason or default_library() or os.environ.get("WEIGHTWIRE_NCCL_LIBRARY"):
        return reason
    return "there is no libnccl here: pip install nvidia-nccl-cu13, or set WEIGHTWIRE_NCCL_LIBRARY to a libnccl.so.2"


def open_transport(path: str) -> Transport:
    """Load a library, and make a stream on the current GPU.

    Raises:
        ChannelError: there is no GPU, or no library.
    """
    reason = why_no_cuda()
    if reason:
        raise ChannelError(f"NCCL can't be used: {reason}.")
    return Transport(nccl=NcclLibrary(path or default_library() or "libnccl.so.2"), device=CudaDevice())


class NcclBroadcaster:
    """The pump's transport."""

    depth = 2
    """The second waits on the device, so that the wire goes on while the host finds out that the first has ended."""

    def __init__(self, transport: Transport, group: NcclGroup) -> None:
        """Send as rank 0 of *group*."""
        self._device = transport.device
        self._group = group

    def place(self, targets: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
        """Copy in one launch, on the caller's stream: behind the gather, and before the next one."""
        with torch.no_grad():
            torch._foreach_copy_(list(targets), list(tensors))

    def ready(self) -> Ready:
        """Mark the caller's stream."""
        mark = self._device.mark_caller()
        return lambda: self._device.hold_wire(mark)

    def broadcast(self, flat: torch.Tensor, ready: Ready, deadline: Deadline) -> Flight:
        """Queue a broadcast behind *ready*."""
        return self._group.begin(flat, ready, deadline)

    def abort(self) -> None:
        """Break the group."""
        self._group.abort()


class NcclPlane(PumpedPlane[NcclGroup]):
    """Implements :class:`~weightwire.planes.DataPlane`."""

    spoken = "NCCL"

    def __init__(self, transport: OpenTransport = open_transport) -> None:
        """Open nothing yet.

        Args:
            transport: makes what the bytes travel through; another one in tests.
        """
        super().__init__()
        self._open_transport = transport

    def prepare(self, spec: ChannelSpec, deadline: Deadline) -> Rendezvous:
        """Check what would hang later, listen, and allocate the ring.

        Raises:
            CompatibilityError: an engine runs another release of NCCL, or other settings of it.
            ChannelError: NCCL can't be loaded, the address can't be bound, or the GPU has no room for the ring.
        """
        self.close(deadline)
        nccl_environment.use_interface(spec.interface)
        transport = self._open_transport(spec.library)
        nccl_version.check(transport.nccl.version, spec.engines)
        nccl_environment.check(spec.engines, transport.device.torch_device)
        ring = ring_for(spec, transport.device.torch_device)
        address = spec.address or address_for(info.url for info in spec.engines)
        if any(info.kind is EngineKind.OURS for info in spec.engines):
            self._group, meeting = _towards_ours(transport, spec, address)
        else:
            self._group, meeting = _towards_stock(transport, spec, address)
        self._pump = Pump(NcclBroadcaster(transport, self._group), ring)
        return meeting


def ring_for(spec: ChannelSpec, device: torch.device) -> Ring:
    """The ring: the receiver's number of buffers is none of its business.

    Raises:
        ChannelError: the GPU has no room for it.
    """
    slots = SLOTS if spec.geometry.buffer_bytes <= SMALL_PACK else SLOTS_OF_LARGE_PACKS
    try:
        return Ring.fitting(spec.manifest.tensors, spec.geometry, slots=slots, device=device)
    except torch.OutOfMemoryError as error:
        raise ChannelError(
            f"{device} has no room for the bucket ring: {error}",
            hint="lower bucket_bytes, or free memory before connecting (torch.cuda.empty_cache())",
        ) from error


def _towards_stock(transport: Transport, spec: ChannelSpec, address: str) -> tuple[NcclGroup, Rendezvous]:
    """A worker of vLLM's own engine finds the communicator's id at a store, or in the call where there is none."""
    place = None if spec.port == NO_STORE else Place(address, spec.port)
    group = NcclGroup.host(transport, place, world_size=spec.world_size, timeout=spec.timeout)
    meeting = Rendezvous(
        address=address,
        port=group.port,
        world_size=spec.world_size,
        unique_id=b"" if group.port else group.unique_id,
        timeout=spec.timeout,
    )
    return group, meeting


def _towards_ours(transport: Transport, spec: ChannelSpec, address: str) -> tuple[NcclGroup, Rendezvous]:
    """A worker of ours is told the id and our release of NCCL in the call, and ties itself to our lifeline."""
    group = NcclGroup.host(transport, None, world_size=spec.world_size, timeout=spec.timeout)
    if spec.port != NO_STORE:
        group.lifeline = Lifeline(Place(address, spec.port), workers=spec.world_size - 1)
    meeting = Rendezvous(
        address=address,
        port=group.lifeline.port if group.lifeline is not None else 0,
        world_size=spec.world_size,
        unique_id=group.unique_id,
        timeout=spec.timeout,
        extra={"transport": "nccl", "nccl_version": transport.nccl.version},
    )
    return group, meeting
