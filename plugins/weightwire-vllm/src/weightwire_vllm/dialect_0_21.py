"""The wire form of vLLM 0.21 to 0.24: start takes a body, and packing is said with every update."""

from __future__ import annotations

import msgspec
from weightwire.messages import ChannelRequest, TransferPlan, Window
from weightwire.vllm import posts
from weightwire.vllm.posts import Post

from weightwire_vllm import wire


class StartBody(msgspec.Struct, frozen=True):
    """The body of start. It is required, and must be JSON: an empty one is answered with 400."""

    is_checkpoint_format: bool = True


class Dialect021:
    """See :class:`weightwire_vllm.dialect.Dialect`."""

    name = "0.21"

    def init(self, request: ChannelRequest) -> Post:
        """Tell the workers to join."""
        return posts.init(posts.store_init(request))

    def start(self) -> Post:
        """Open an update."""
        return wire.start(msgspec.json.encode(StartBody()))

    def update(self, plan: TransferPlan, window: Window) -> Post:
        """Receive one window. ``update_kind`` (0.23, 0.24) is left at its default, dense."""
        return posts.update(posts.packed_rows(plan, window))

    def finish(self, weight_version: str | None) -> Post:
        """Close the update; these releases keep no version."""
        del weight_version
        return wire.finish()
