"""One engine put together: models, workers, executors and the core."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from weightwire_testing.faults import FaultPlan
from weightwire_testing.model import fingerprint, load_checkpoint
from weightwire_testing.reference.core import EngineCore
from weightwire_testing.reference.executor import Executor
from weightwire_testing.reference.our_engine import OurEngine
from weightwire_testing.reference.reload import Reload
from weightwire_testing.reference.reports import Holding
from weightwire_testing.reference.settings import Backend, EngineSettings
from weightwire_testing.reference.stock_engine import StockEngine
from weightwire_testing.reference.transfer import Place, TransferEngine
from weightwire_testing.reference.worker import Worker


class Engine:
    """A reference engine, without its web server."""

    def __init__(self, settings: EngineSettings, *, faults: FaultPlan, on_death: Callable[[str], None]) -> None:
        """Load the checkpoint once for each worker, and start.

        Args:
            settings: the set-up.
            faults: shared with the web server; the workers suffer those of the collectives.
            on_death: told why the core ended.
        """
        self.settings = settings
        self.release = settings.release
        self.max_tokens = 0
        self.dtype = ""
        groups = [
            Executor([self._worker(rank * settings.workers + index, faults) for index in range(settings.workers)])
            for rank in range(settings.data_parallel)
        ]
        self.core = EngineCore(groups, on_death)

    def holdings(self) -> list[Holding]:
        """What every worker holds now, read beside the core: it never waits for a transfer."""
        return [_holding(worker.reload) for group in self.core.groups for worker in group.workers]

    def _worker(self, index: int, faults: FaultPlan) -> Worker:
        model = load_checkpoint(Path(self.settings.checkpoint))
        model.eval()
        self.max_tokens = model.shape.max_positions
        self.dtype = str(model.lm_head.weight.dtype)
        place = Place(
            release=self.release,
            index=index,
            timeout=timedelta(seconds=self.settings.timeout),
            faults=faults,
            hang_on_lost_peer=self.settings.hang_on_lost_peer,
        )
        return Worker(Reload(model, self.release), _transfer(self.settings, place), release=self.release, index=index)


def _transfer(settings: EngineSettings, place: Place) -> TransferEngine | None:
    if settings.backend is Backend.NONE:
        return None
    return StockEngine(place) if settings.backend is Backend.NCCL else OurEngine(place)


def _holding(reload: Reload) -> Holding:
    return Holding(
        fingerprint=fingerprint(reload.model.checkpoint_tensors()),
        garbage=tuple(sorted(reload.garbage)),
        open=reload.open,
    )
