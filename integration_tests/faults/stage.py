"""Where cells are played: engines that are used again and again, trainers, and the judge."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from cells import Cell
from judge import Judge
from trainers import Trainers
from weightwire_testing.model import TinyLlama, fingerprint, save_checkpoint
from weightwire_testing.reference import Backend, EngineSettings, ReferenceEngine

SLACK = 1.5
"""Seconds that a call may be late: the waiter's own grace, and a busy machine."""

ENGINE_SECONDS = 45.0
"""Longer than any deadline of a cell: an engine that gives up by itself would hide a client that does not."""


class Engine(Protocol):
    """What a play knows of an engine."""

    @property
    def url(self) -> str:
        """What a trainer connects to."""

    @property
    def alive(self) -> bool:
        """Whether its process runs."""

    def set_faults(self, *faults: str) -> None:
        """Put these faults in force, instead of those there were."""


class Stage(Protocol):
    """Where a play is given."""

    trainers: Trainers
    judge: Judge

    def engines(self, cell: Cell) -> Sequence[Engine]:
        """As many engines as the cell has, as from their start, with weights A."""

    def kill(self, engine: Engine) -> None:
        """End its process, as a crash would."""

    def revive(self, engine: Engine) -> None:
        """Start its process anew."""

    def look(self, engine: Engine) -> str:
        """What it serves, in the words of the table."""

    def clear(self) -> None:
        """Trust nothing that is there after a play that broke off: the next cell starts its own."""

    def close(self) -> None:
        """End everything."""


class ReferenceStage:
    """Two reference engines, which are reset from cell to cell."""

    def __init__(self) -> None:
        """Start them, and a trainer."""
        self._scratch = tempfile.TemporaryDirectory(prefix="weightwire-faults-")
        self.checkpoint = save_checkpoint(TinyLlama(seed=1), Path(self._scratch.name) / "a")
        self.held = fingerprint(TinyLlama(seed=2).checkpoint_tensors())
        self.judge = Judge()
        self.trainers = Trainers()
        self._engines = [ReferenceEngine(self._settings("0.32.0", stock=True)).start() for _ in range(2)]

    def close(self) -> None:
        """End everything."""
        self.clear()
        self.trainers.close()
        self._scratch.cleanup()

    def clear(self) -> None:
        """Begin anew with the next cell."""
        self.trainers.give_up()
        for engine in self._engines:
            engine.stop()

    def engines(self, cell: Cell) -> list[ReferenceEngine]:
        """Engines as from their start, by a reset where the process still lives."""
        settings = self._settings(cell.version, stock=cell.stock, workers=cell.workers, hang=cell.row.hang)
        lent = self._engines[: len(cell.row.states)]
        for engine in lent:
            if engine.alive:
                engine.reset(settings)
                engine.set_faults()
            else:
                engine.settings = settings
                engine.start()
        return lent

    def kill(self, engine: ReferenceEngine) -> None:
        """Kill it."""
        engine.stop()

    def revive(self, engine: ReferenceEngine) -> None:
        """Start it where it was."""
        engine.start()

    def look(self, engine: ReferenceEngine) -> str:
        """What it serves; of a paused one also whether it holds B, which its holdings tell."""
        engine_says = self.judge.serves(engine.url) if engine.alive else "nobody"
        if engine_says == "paused" and engine.fingerprint() == self.held and not engine.holdings()[0].open:
            return "paused B"
        return engine_says

    def _settings(self, version: str, *, stock: bool, workers: int = 1, hang: bool = False) -> EngineSettings:
        return EngineSettings(
            checkpoint=str(self.checkpoint),
            version=version,
            backend=Backend.NCCL if stock else Backend.WEIGHTWIRE,
            workers=workers,
            timeout=ENGINE_SECONDS,
            hang_on_lost_peer=hang,
        )
