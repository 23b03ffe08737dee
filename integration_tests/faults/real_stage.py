"""Where cells are played with real vLLM servers, on this CPU: one at a time, used for all cells that it survives."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Literal

from cells import Cell
from judge import Judge
from speech import Command
from trainers import Trainers
from weightwire_testing import environments
from weightwire_testing.cuts import CutProxy
from weightwire_testing.model import TinyLlama, save_checkpoint
from weightwire_testing.servers import Setup, VllmServer

START_SECONDS = 300.0
PATIENCE = 20.0
"""Seconds until an answer: the first description of itself takes a server several."""


class RealEngine:
    """A server, and the proxy before it that makes its faults.

    Attributes:
        url: the proxy's, which trainers connect to.
        place: what it is, in the words of the table.
        starts: how often its process was started.
    """

    def __init__(self, place: str, checkpoint: Path) -> None:
        """Start it, and wait until it answers."""
        version, engine = place.split()
        kind: Literal["ours", "stock"] = "stock" if engine == "stock" else "ours"
        # Ours as on a GPU, so that rounds land by its plan; on a CPU as it is, all would take vLLM's reload.
        setup = Setup(engine=kind, like_a_gpu=kind == "ours", arguments=("--skip-tokenizer-init",))
        environment = environments.ensure(version, on_progress=lambda step: print(step.text, flush=True))
        self.place = place
        self.starts = 0
        self.server = VllmServer(environment, checkpoint, setup=setup, ready_within=START_SECONDS)
        self._proxy: CutProxy | None = None
        self.start()

    def start(self) -> None:
        """Start its process, anew if need be; the address stays."""
        self.server.stop()
        began = time.monotonic()
        self.server.__enter__()
        self.starts += 1
        if self._proxy is None:
            self._proxy = CutProxy(self.server.url, die=self.server.kill)
            self.url = self._proxy.url
        else:
            self._proxy.lead_to(self.server.url)
        print(f"        started {self.place} in {time.monotonic() - began:.0f} s", flush=True)

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self.server.running

    def set_faults(self, *faults: str) -> None:
        """Put these faults in force on the way to it."""
        if self._proxy is not None:
            self._proxy.set_faults(*faults)

    def close(self) -> None:
        """End it."""
        self.server.stop()
        if self._proxy is not None:
            self._proxy.close()


class RealStage:
    """One real server at a time. Cells have to come sorted by their places."""

    def __init__(self) -> None:
        """Start a trainer; a server starts with the first cell."""
        self._scratch = tempfile.TemporaryDirectory(prefix="weightwire-faults-")
        self.checkpoint = save_checkpoint(TinyLlama(seed=1), Path(self._scratch.name) / "a")
        self.judge = Judge(PATIENCE)
        self.trainers = Trainers()
        self._engine: RealEngine | None = None

    def engines(self, cell: Cell) -> list[RealEngine]:
        """The server of this place, with weights A in it: it is restarted if it can't be brought there."""
        engine = self._engine
        if engine is None or engine.place != cell.place:
            self._close_engine()
            self._engine = engine = RealEngine(cell.place, self.checkpoint)
        engine.set_faults()
        if not (engine.alive and self._restored(engine, cell)):
            engine.start()
        served = self.look(engine)
        assert served == "A", f"a cell begins with weights A, and the server serves {served}"
        return [engine]

    def kill(self, engine: RealEngine) -> None:
        """Kill it."""
        engine.server.kill()

    def revive(self, engine: RealEngine) -> None:
        """Start it."""
        engine.start()

    def look(self, engine: RealEngine) -> str:
        """What it serves: asked at its own address, beside the proxy."""
        return self.judge.serves(engine.server.url) if engine.alive else "nobody"

    def clear(self) -> None:
        """Begin anew with the next cell."""
        self.trainers.give_up()
        self._close_engine()

    def close(self) -> None:
        """End everything."""
        self.clear()
        self.trainers.close()
        self._scratch.cleanup()

    def _restored(self, engine: RealEngine, cell: Cell) -> bool:
        """Bring weights A into it, if they are not there; whether that could be done."""
        trainer = self.trainers.current()
        trainer.do(Command(do="close"))
        if self.look(engine) == "A":
            return True
        plane = "stock-shim" if cell.stock else ""
        trainer.do(Command(do="connect", urls=(engine.url,), plane=plane, timeout=60.0))
        answer = trainer.do(Command(do="push", weights="A", version="A", timeout=60.0))
        trainer.do(Command(do="close"))
        return not answer.error

    def _close_engine(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = None
