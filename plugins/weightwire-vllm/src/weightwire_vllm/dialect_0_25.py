"""The wire form of vLLM 0.25 to 0.27: start takes no body any more; from 0.27 finish may set the version."""

from __future__ import annotations

import msgspec
from weightwire.messages import ChannelRequest, TransferPlan, Window

from weightwire_vllm import wire
from weightwire_vllm.behaviour import Release, behaviour
from weightwire_vllm.wire import Post


class InitInfo(msgspec.Struct, frozen=True, kw_only=True):
    """``init_info`` of the nccl engine."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int


class UpdateInfo(msgspec.Struct, frozen=True, kw_only=True):
    """``update_info`` of the nccl engine."""

    names: tuple[str, ...]
    dtype_names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    packed: bool
    packed_buffer_size_bytes: int
    packed_num_buffers: int


class Dialect025:
    """See :class:`weightwire_vllm.dialect.Dialect`."""

    name = "0.25"

    def __init__(self, release: Release) -> None:
        """Speak to *release*."""
        self._behaviour = behaviour(release)

    def init(self, request: ChannelRequest) -> Post:
        """Tell the workers to join."""
        meeting = wire.needs_store(request.rendezvous)
        return wire.init(
            InitInfo(
                master_address=meeting.address,
                master_port=meeting.port,
                rank_offset=request.rank_offset,
                world_size=meeting.world_size,
            )
        )

    def start(self) -> Post:
        """Open an update. A body would be ignored, also one that asks for the kernel format, which is gone."""
        return wire.start()

    def update(self, plan: TransferPlan, window: Window) -> Post:
        """Receive one window."""
        rows, geometry = wire.rows(plan, window), plan.geometry
        return wire.update(
            UpdateInfo(
                names=rows.names,
                dtype_names=rows.dtype_names,
                shapes=rows.shapes,
                packed=geometry.packed,
                packed_buffer_size_bytes=geometry.buffer_bytes,
                packed_num_buffers=geometry.num_buffers,
            )
        )

    def finish(self, weight_version: str | None) -> Post:
        """Close the update, and say which version it brought, where the server keeps one."""
        return wire.finish(weight_version if self._behaviour.keeps_weight_version else None)
