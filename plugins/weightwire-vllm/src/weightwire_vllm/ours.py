"""Our own engine in the server, over one wire form: start and finish stay vLLM's."""

from __future__ import annotations

from weightwire.messages import ChannelRequest, TransferPlan, Window
from weightwire.vllm import our_payloads
from weightwire.vllm.posts import Post

from weightwire_vllm.dialect import Dialect


class OursOver:
    """A dialect whose init and update speak to the engine of weightwire-vllm-engine."""

    def __init__(self, stock: Dialect) -> None:
        """Take start and finish from *stock*."""
        self._stock = stock

    @property
    def name(self) -> str:
        """The dialect underneath."""
        return self._stock.name

    def init(self, request: ChannelRequest) -> Post:
        """Tell the workers to join, and what will travel."""
        return our_payloads.init(request)

    def start(self) -> Post:
        """Open an update."""
        return self._stock.start()

    def update(self, plan: TransferPlan, window: Window) -> Post:
        """Receive one window of the manifest given at init."""
        return our_payloads.update(plan, window)

    def finish(self, weight_version: str | None) -> Post:
        """Close the update."""
        return self._stock.finish(weight_version)
