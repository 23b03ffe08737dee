"""The wire form of vLLM 0.28 to 0.33: packing is settled once, at init, and an update holds names alone."""

from __future__ import annotations

from base64 import b64encode

import msgspec
from weightwire.messages import ChannelRequest, TransferPlan, Window
from weightwire.vllm import posts
from weightwire.vllm.behaviour import Release, behaviour
from weightwire.vllm.posts import Post

from weightwire_vllm import wire


class StoreInit(posts.StoreInit, frozen=True, kw_only=True):
    """``init_info`` of the nccl engine where the workers meet at a store."""

    packed: bool
    packed_buffer_size_bytes: int
    packed_num_buffers: int


class UniqueIdInit(msgspec.Struct, frozen=True, kw_only=True):
    """``init_info`` from 0.30 on, where the communicator's id travels with it. Naming a store besides is refused."""

    nccl_unique_id_b64: str
    rank_offset: int
    world_size: int
    packed: bool
    packed_buffer_size_bytes: int
    packed_num_buffers: int


class Dialect028:
    """See :class:`weightwire_vllm.dialect.Dialect`."""

    name = "0.28"

    def __init__(self, release: Release) -> None:
        """Speak to *release*."""
        self._behaviour = behaviour(release)

    def init(self, request: ChannelRequest) -> Post:
        """Tell the workers to join, over a store unless the rendezvous brings a unique id."""
        if request.rendezvous.unique_id and self._behaviour.takes_unique_id:
            return posts.init(_by_unique_id(request))
        return posts.init(_over_a_store(request))

    def start(self) -> Post:
        """Open an update."""
        return wire.start()

    def update(self, plan: TransferPlan, window: Window) -> Post:
        """Receive one window. ``packed`` here would be an unknown key, answered with 500 on a torn model."""
        return posts.update(posts.rows(plan, window))

    def finish(self, weight_version: str | None) -> Post:
        """Close the update, and say which version it brought."""
        return wire.finish(weight_version)


def _over_a_store(request: ChannelRequest) -> StoreInit:
    meeting, geometry = posts.needs_store(request.rendezvous), request.geometry
    return StoreInit(
        master_address=meeting.address,
        master_port=meeting.port,
        rank_offset=request.rank_offset,
        world_size=meeting.world_size,
        packed=geometry.packed,
        packed_buffer_size_bytes=geometry.buffer_bytes,
        packed_num_buffers=geometry.num_buffers,
    )


def _by_unique_id(request: ChannelRequest) -> UniqueIdInit:
    meeting, geometry = request.rendezvous, request.geometry
    return UniqueIdInit(
        nccl_unique_id_b64=b64encode(meeting.unique_id).decode(),
        rank_offset=request.rank_offset,
        world_size=meeting.world_size,
        packed=geometry.packed,
        packed_buffer_size_bytes=geometry.buffer_bytes,
        packed_num_buffers=geometry.num_buffers,
    )
