"""Where cells are played: reference engines that are used again and again, trainers, and the judge."""

from __future__ import annotations

import tempfile
from pathlib import Path

from cells import Cell
from judge import Judge
from trainers import Trainers
from weightwire_testing.model import TinyLlama, fingerprint, save_checkpoint
from weightwire_testing.reference import Backend, EngineSettings, ReferenceEngine

SLACK = 1.5
"""Seconds that a call may be late: the waiter's own grace, and a busy machine."""

ENGINE_SECONDS = 45.0
"""Longer than any deadline of a cell: an engine that gives up by itself would hide a client that does not."""


class Stage:
    """Reused from cell to cell."""

    def __init__(self) -> None:
        """Start two engines, and a trainer."""
        self._scratch = tempfile.TemporaryDirectory(prefix="weightwire-faults-")
        self.checkpoint = save_checkpoint(TinyLlama(seed=1), Path(self._scratch.name) / "a")
        self.held = fingerprint(TinyLlama(seed=2).checkpoint_tensors())
        self.judge = Judge()
        self.trainers = Trainers()
        self._engines = [ReferenceEngine(self._settings("0.32.0", stock=True)).start() for _ in range(2)]

    def clear(self) -> None:
        """Trust nothing that is there after a play that broke off: the next cell starts its own."""
        self.trainers.give_up()
        for engine in self._engines:
            engine.stop()

    def close(self) -> None:
        """End everything."""
        self.trainers.close()
        for engine in self._engines:
            engine.stop()
        self._scratch.cleanup()

    def engines(self, cell: Cell) -> list[ReferenceEngine]:
        """Engines as from their start, as many as the cell has."""
        settings = self._settings(cell.version, stock=cell.stock, hang=cell.row.hang)
        lent = self._engines[: len(cell.row.states)]
        for engine in lent:
            self.revive(engine, settings)
        return lent

    def revive(self, engine: ReferenceEngine, settings: EngineSettings | None = None) -> None:
        """Start an engine anew: by a reset where its process still lives and answers."""
        engine.settings = settings or engine.settings
        if engine.alive and settings is not None:
            engine.reset(settings)
            engine.set_faults()
        else:
            engine.start()

    def look(self, engine: ReferenceEngine) -> str:
        """What it serves, in the words of the table."""
        engine_says = self.judge.serves(engine.url) if engine.alive else "nobody"
        if engine_says == "paused" and engine.fingerprint() == self.held and not engine.holdings()[0].open:
            return "paused B"
        return engine_says

    def _settings(self, version: str, *, stock: bool, hang: bool = False) -> EngineSettings:
        return EngineSettings(
            checkpoint=str(self.checkpoint),
            version=version,
            backend=Backend.NCCL if stock else Backend.WEIGHTWIRE,
            timeout=ENGINE_SECONDS,
            hang_on_lost_peer=hang,
        )
