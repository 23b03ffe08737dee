"""What is said to our own engine in the server: the same calls as to vLLM's, with payloads of ours in them."""

from __future__ import annotations

from weightwire.engine_wire import WIRE_VERSION, EngineInit, EngineUpdate
from weightwire.errors import ChannelError
from weightwire.messages import ChannelRequest, TransferPlan, Window
from weightwire.vllm import posts
from weightwire.vllm.posts import Post


def init(request: ChannelRequest) -> Post:
    """Tell the workers to join, and what will travel.

    Raises:
        ChannelError: the data plane does not say which transport the workers should use.
    """
    meeting, geometry, manifest = request.rendezvous, request.geometry, request.manifest
    return posts.init(
        EngineInit(
            wire_version=WIRE_VERSION,
            transport=_transport(request),
            address=meeting.address,
            port=meeting.port,
            rank_offset=request.rank_offset,
            world_size=meeting.world_size,
            timeout=meeting.timeout,
            packed=geometry.packed,
            buffer_bytes=geometry.buffer_bytes,
            tensors=manifest.tensors,
            digest=manifest.digest,
            unique_id=meeting.unique_id,
            nccl_version=str(meeting.extra.get("nccl_version", "")),
        )
    )


def update(plan: TransferPlan, window: Window) -> Post:
    """Receive one window of the manifest given at init.

    Raises:
        ManifestError: it is empty.
    """
    posts.tensors_of(plan, window)
    return receive(plan, window)


def receive(plan: TransferPlan, window: Window) -> Post:
    """Receive one window, which may be empty: up to 0.20 such an update is a flush."""
    return posts.update(
        EngineUpdate(
            action="receive",
            round_id=plan.round_id,
            start=window.start,
            stop=window.stop,
            digest=plan.manifest.digest,
        )
    )


def _transport(request: ChannelRequest) -> str:
    transport = request.rendezvous.extra.get("transport")
    if not isinstance(transport, str):
        raise ChannelError(
            "The data plane does not say which transport the engine's workers should use.",
            hint='a plane for the backend "weightwire" puts {"transport": …} into Rendezvous.extra',
        )
    return transport
