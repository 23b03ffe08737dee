"""The wire form of vLLM 0.25 to 0.27: start takes no body any more; from 0.27 finish may set the version."""

from __future__ import annotations

from weightwire.messages import ChannelRequest, TransferPlan, Window
from weightwire.vllm import posts
from weightwire.vllm.behaviour import Release, behaviour
from weightwire.vllm.posts import Post

from weightwire_vllm import wire


class Dialect025:
    """See :class:`weightwire_vllm.dialect.Dialect`."""

    name = "0.25"

    def __init__(self, release: Release) -> None:
        """Speak to *release*."""
        self._behaviour = behaviour(release)

    def init(self, request: ChannelRequest) -> Post:
        """Tell the workers to join."""
        return posts.init(posts.store_init(request))

    def start(self) -> Post:
        """Open an update. A body would be ignored, also one that asks for the kernel format, which is gone."""
        return wire.start()

    def update(self, plan: TransferPlan, window: Window) -> Post:
        """Receive one window."""
        return posts.update(posts.packed_rows(plan, window))

    def finish(self, weight_version: str | None) -> Post:
        """Close the update, and say which version it brought, where the server keeps one."""
        return wire.finish(weight_version if self._behaviour.keeps_weight_version else None)
