"""The wire form of vLLM 0.17 to 0.20: init and update alone, and every update call is a whole update.

The worker puts all layers on meta, loads what the call names, and puts the others back as they were. So a call has to
hold whole modules, and one that names nothing puts everything back: it is the flush.
"""

from __future__ import annotations

from typing import Protocol

from weightwire.messages import ChannelRequest, TransferPlan, Window
from weightwire.vllm import our_payloads, posts
from weightwire.vllm.control import Encoders
from weightwire.vllm.posts import Post

NAME = "0.17"
NOTHING = Window(0, 0, 0)


class UpdateInfo(posts.PackedRows, frozen=True, kw_only=True):
    """``update_info`` of the nccl engine. The kernel format would take run-time names, already sharded."""

    is_checkpoint_format: bool = True


class TwoCalls(Encoders, Protocol):
    """The calls, to one engine or the other."""

    def flush(self, plan: TransferPlan) -> Post:
        """Receive nothing, and put every layer back."""


class ToStock:
    """To vLLM's own nccl engine."""

    name = NAME

    def init(self, request: ChannelRequest) -> Post:
        """Tell the workers to join."""
        return posts.init(posts.store_init(request))

    def update(self, plan: TransferPlan, window: Window) -> Post:
        """Receive one window, and put every other layer back."""
        rows = posts.packed_rows(plan, window)
        return posts.update(
            UpdateInfo(
                names=rows.names,
                dtype_names=rows.dtype_names,
                shapes=rows.shapes,
                packed=rows.packed,
                packed_buffer_size_bytes=rows.packed_buffer_size_bytes,
                packed_num_buffers=rows.packed_num_buffers,
            )
        )

    def flush(self, plan: TransferPlan) -> Post:
        """Receive nothing, and put every layer back. Unpacked: nothing is waited for."""
        return posts.update(
            UpdateInfo(
                names=(),
                dtype_names=(),
                shapes=(),
                packed=False,
                packed_buffer_size_bytes=plan.geometry.buffer_bytes,
                packed_num_buffers=plan.geometry.num_buffers,
            )
        )


class ToOurs:
    """To the engine of weightwire-vllm-engine, under the name ``ipc``; the format is the checkpoint's, unsaid."""

    name = NAME

    def init(self, request: ChannelRequest) -> Post:
        """Tell the workers to join, and what will travel."""
        return our_payloads.init(request)

    def update(self, plan: TransferPlan, window: Window) -> Post:
        """Receive one window of the manifest given at init."""
        return our_payloads.update(plan, window)

    def flush(self, plan: TransferPlan) -> Post:
        """Receive an empty window."""
        return our_payloads.receive(plan, NOTHING)
