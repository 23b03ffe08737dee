"""The wire form of vLLM 0.21 to 0.24: start takes a body, and packing is said with every update."""

from __future__ import annotations

import msgspec
from weightwire.messages import ChannelRequest, TransferPlan, Window

from weightwire_vllm import wire
from weightwire_vllm.wire import Post


class InitInfo(msgspec.Struct, frozen=True, kw_only=True):
    """``init_info`` of the nccl engine."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int


class StartBody(msgspec.Struct, frozen=True):
    """The body of start. It is required, and must be JSON: an empty one is answered with 400."""

    is_checkpoint_format: bool = True


class UpdateInfo(msgspec.Struct, frozen=True, kw_only=True):
    """``update_info`` of the nccl engine. ``update_kind`` (0.23, 0.24) is left at its default, dense."""

    names: tuple[str, ...]
    dtype_names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    packed: bool
    packed_buffer_size_bytes: int
    packed_num_buffers: int


class Dialect021:
    """See :class:`weightwire_vllm.dialect.Dialect`."""

    name = "0.21"

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
        """Open an update."""
        return wire.start(msgspec.json.encode(StartBody()))

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
        """Close the update; these releases keep no version."""
        del weight_version
        return wire.finish()
