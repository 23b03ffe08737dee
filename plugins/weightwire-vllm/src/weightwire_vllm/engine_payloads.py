"""What is said to our own engine in the server: the same calls, with payloads of ours in them."""

from __future__ import annotations

from weightwire.engine_wire import WIRE_VERSION, EngineInit, EngineUpdate
from weightwire.errors import ChannelError
from weightwire.messages import ChannelRequest, TransferPlan, Window

from weightwire_vllm import wire
from weightwire_vllm.dialect import Dialect
from weightwire_vllm.wire import Post


class OursOver:
    """A dialect whose init and update speak to the engine of weightwire-vllm-engine; start and finish are vLLM's."""

    def __init__(self, stock: Dialect) -> None:
        """Take start and finish from *stock*."""
        self._stock = stock

    @property
    def name(self) -> str:
        """The dialect underneath."""
        return self._stock.name

    def init(self, request: ChannelRequest) -> Post:
        """Tell the workers to join, and what will travel.

        Raises:
            ChannelError: the data plane does not say which transport the workers should use.
        """
        meeting, geometry, manifest = request.rendezvous, request.geometry, request.manifest
        return wire.init(
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
            )
        )

    def start(self) -> Post:
        """Open an update."""
        return self._stock.start()

    def update(self, plan: TransferPlan, window: Window) -> Post:
        """Receive one window of the manifest given at init."""
        wire.rows(plan, window)
        return wire.update(
            EngineUpdate(
                action="receive",
                round_id=plan.round_id,
                start=window.start,
                stop=window.stop,
                digest=plan.manifest.digest,
            )
        )

    def finish(self, weight_version: str | None) -> Post:
        """Close the update."""
        return self._stock.finish(weight_version)


def _transport(request: ChannelRequest) -> str:
    transport = request.rendezvous.extra.get("transport")
    if not isinstance(transport, str):
        raise ChannelError(
            "The data plane does not say which transport the engine's workers should use.",
            hint='a plane for the backend "weightwire" puts {"transport": …} into Rendezvous.extra',
        )
    return transport
