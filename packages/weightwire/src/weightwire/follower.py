"""The backend of every trainer rank but the sender: it gathers in step, and sends nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence

from weightwire.deadlines import Deadline
from weightwire.errors import SourceFailed
from weightwire.gathering import Gate, gather_and_drop, groups_of, open_gate
from weightwire.hookspecs import hookimpl
from weightwire.messages import ChannelInfo, EngineInfo, TransferPlan, TransferStats
from weightwire.planes import WeightSource
from weightwire.states import EngineState
from weightwire.tensors import Manifest, PackGeometry


class FollowerBackend:
    """Implements the hooks that run on every rank.

    Attributes:
        gate: passed between two windows.
    """

    def __init__(self) -> None:
        """Let pass."""
        self.gate: Gate = open_gate

    @hookimpl
    def weightwire_open_channel(
        self, engines: Sequence[EngineInfo], manifest: Manifest, deadline: Deadline
    ) -> ChannelInfo:
        """Join nothing: only the sender is a member of the group."""
        del engines, deadline
        geometry = PackGeometry(packed=False, buffer_bytes=0, num_buffers=0)
        return ChannelInfo(data_plane="", world_size=0, digest=manifest.digest, geometry=geometry)

    @hookimpl
    def weightwire_transfer(self, plan: TransferPlan, source: WeightSource, deadline: Deadline) -> TransferStats:
        """Gather every group, in step with the sender."""
        began = time.perf_counter()
        error: Exception | None = None
        for window in plan.windows:
            if window.index:
                self.gate(error, deadline)
            failed = gather_and_drop(source, groups_of(plan.manifest, window))
            error = error or failed
        if error is not None:
            raise SourceFailed(f"The weight source raised on this rank: {type(error).__name__}: {error}") from error
        return TransferStats(gather=time.perf_counter() - began)

    @hookimpl
    def weightwire_abort_update(
        self, plan: TransferPlan, error: BaseException, deadline: Deadline
    ) -> dict[str, EngineState]:
        """Know nothing of engines."""
        del plan, error, deadline
        return {}

    @hookimpl
    def weightwire_close_channel(self, deadline: Deadline) -> bool:
        """Leave nothing."""
        del deadline
        return True
