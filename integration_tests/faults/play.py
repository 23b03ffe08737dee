"""How a cell is played: to the fault, through it, and on to where weights C are in."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
import requests
from cells import Cell, Found
from judge import is_paused, status
from speech import Answer, Command
from stage import SLACK, Stage
from trainers import Gone, TrainerProcess, pair
from weightwire_testing.reference import ReferenceEngine


class Play:
    """One cell on a stage."""

    def __init__(self, stage: Stage, cell: Cell) -> None:
        """Set the scene."""
        self.stage = stage
        self.cell = cell
        self.row = cell.row
        self.engines = stage.engines(cell)
        self.trainer = stage.trainers.current()
        self.others: list[TrainerProcess] = []
        self.over = 0.0

    def run(self) -> Found:
        """Play it."""
        try:
            answer = self._act()
            for engine in self.engines:
                with suppress(requests.RequestException):  # it may be about to die
                    engine.set_faults()
            found = self._found(answer)
            return self._then(found)
        finally:
            for process in self.others:
                process.stop()

    # Up to the fault, and through it.

    def _act(self) -> Answer:
        if self.row.scene:
            return self._scene()
        if self.row.ranks:
            return self._ranks()
        if self.row.trainer:
            return self._struck()
        return self._injected()

    def _injected(self) -> Answer:
        early = self.row.phase in {"connect", "open"}
        if not early:
            self._must("connect")
        if self.row.phase == "close":
            self._must("push", version="B")
        if self.row.inject:
            self.engines[0].set_faults(self.row.inject)
        if early or self.row.phase == "close":
            return self._do("connect" if early else "close")
        return self._do("push", version="B", fail=self.row.source)

    def _struck(self) -> Answer:
        """A signal reaches the trainer where the row says."""
        name, _, point = self.row.trainer.partition(" ")
        number = signal.Signals[name]
        self._must("connect")
        if point == "after the push":
            self._must("push", version="B")
            self.trainer.signal(number)
            return Answer(error="-")
        command = self._command("push", version="B", halt=point)
        halted = self.trainer.answer(self.trainer.begin(command), command)
        assert halted.halted == point, halted
        began = time.monotonic()
        call = self.trainer.next_line()
        self.trainer.signal(number)
        with suppress(Gone):
            answer = self.trainer.answer(call, command)
            self._timed(time.monotonic() - began, command)
            if point == "in commit":
                self._do("wait")  # lets the commit go on, and collects it
            return answer
        self._settle_down()
        return Answer(error="-")

    def _ranks(self) -> Answer:
        ranks = self.others = pair()
        commands = [self._command("connect"), self._command("connect")]
        self._both(ranks, commands)
        fail = {
            "raises": "middle",
            "raises before its collective": "before the collective",
            "dies in mid-stream": "die",
        }.get(self.row.ranks, "")
        if self.row.ranks == "dies before the round":
            ranks[1].signal(signal.SIGKILL)
        self.trainer = ranks[0]
        commands = [self._command("push", version="B"), self._command("push", version="B", fail=fail)]
        answer = self._both(ranks, commands)
        self._timed(answer.seconds, commands[0])
        return answer

    def _both(self, ranks: Sequence[TrainerProcess], commands: Sequence[Command]) -> Answer:
        calls = [rank.begin(command) for rank, command in zip(ranks, commands, strict=True)]
        answers = []
        for rank, call, command in zip(ranks, calls, commands, strict=True):
            with suppress(Gone):
                answers.append(rank.answer(call, command))
        return answers[0]

    # Plays of their own.

    def _scene(self) -> Answer:
        second = "second engine: "
        if self.row.scene.startswith(second):
            self._must("connect")
            self.engines[1].set_faults(self.row.scene.removeprefix(second))
            return self._do("push", version="B")
        scenes: dict[str, Callable[[], Answer]] = {
            "inside another's transfer": self._inside_anothers_transfer,
            "restarted between rounds": self._restarted,
            "second engine killed between rounds": self._second_killed,
            "left open by a dead client": self._left_open,
            "another version is read back": self._tampered,
            "killed before close": self._killed_before_close,
        }
        return scenes[self.row.scene]()

    def _inside_anothers_transfer(self) -> Answer:
        other, self.trainer = self.trainer, self.stage.trainers.next()
        self.others.append(other)
        other.do(self._command("connect", timeout=60.0))
        command = self._command("push", version="B", halt="in transfer", timeout=60.0)
        other.answer(other.begin(command), command)
        return self._do("connect")

    def _restarted(self) -> Answer:
        self._must("connect")
        self._must("push", weights="A", version="A")
        self._kill(self.engines[0])
        self.stage.revive(self.engines[0])
        return self._do("push", version="B")

    def _second_killed(self) -> Answer:
        self._must("connect")
        self._must("push", weights="A", version="A")
        self._kill(self.engines[1])
        return self._do("push", version="B")

    def _left_open(self) -> Answer:
        requests.post(f"{self.engines[0].url}/start_weight_update", json={}, timeout=5).raise_for_status()
        self._must("connect")
        return self._do("push", version="B")

    def _tampered(self) -> Answer:
        self._must("connect", tamper=True)
        return self._do("push", version="B")

    def _killed_before_close(self) -> Answer:
        self._must("connect")
        self._must("push", version="B")
        self._kill(self.engines[0])
        return self._do("close")

    # Afterwards.

    def _found(self, answer: Answer) -> Found:
        """What it came to, judged from outside; the session's word must agree with that of a new process."""
        told = tuple(answer.states.get(engine.url, "") for engine in self.engines)
        seen = tuple(status(engine.url) if engine.alive else "lost" for engine in self.engines)
        by_session = self.row.phase not in {"connect", "open", "close"} and answer.error != "-"
        return Found(
            raises=answer.error,
            states=told if by_session else seen,
            serves=tuple(self.stage.look(engine) for engine in self.engines),
            next="",
            over=self.over,
            text=answer.text,
        )

    def _then(self, found: Found) -> Found:
        """Bring weights C in, the way the row says."""
        try:
            for step in self.row.next.split(", "):
                self._step(step)
            served = {self.stage.look(engine) for engine in self.engines}
            how = self.row.next if served == {"C"} else f"failed: serves {', '.join(sorted(served))}"
        except (AssertionError, Gone) as error:
            how = f"failed: {error}"
        return msgspec.structs.replace(found, next=how)

    def _step(self, step: str) -> None:
        match step:
            case "restart":
                for engine in self.engines:
                    if self.stage.look(engine) == "nobody":
                        self._kill(engine)
                        self.stage.revive(engine)
            case "recover":
                self._must("recover")
            case "connect":
                self._fresh_trainer()
                self._must("connect")
                self._must("push", weights="C", version="C")
            case "push":
                ranks = [rank for rank in self.others if rank.alive] if self.row.ranks else []
                if ranks:
                    answer = self._both(ranks, [self._command("push", weights="C", version="C")] * len(ranks))
                    assert not answer.error, answer.text
                else:
                    self._must("push", weights="C", version=f"C{time.monotonic_ns()}")

    def _fresh_trainer(self) -> None:
        """Another process, unless the one in use has no session that matters any more."""
        for process in self.others:
            process.stop()
        if self.row.trainer or self.row.ranks:
            self.stage.trainers.give_up()
        self.trainer = self.stage.trainers.current()

    def _do(self, what: str, **more: object) -> Answer:
        command = self._command(what, **more)
        answer = self.trainer.do(command)
        self._timed(answer.seconds, command)
        return answer

    def _must(self, what: str, **more: object) -> None:
        answer = self._do(what, **{"timeout": 20.0, **more} if what != "connect" else more)
        assert not answer.error, f"{what}: {answer.text}"

    def _timed(self, seconds: float, command: Command) -> None:
        self.over = max(self.over, seconds - command.timeout - SLACK)

    def _command(self, what: str, **more: object) -> Command:
        plane = "stock-shim" if self.cell.stock else ""
        urls = tuple(engine.url for engine in self.engines)
        plain = {"do": what, "urls": urls, "timeout": self.row.timeout, "plane": plane}
        return msgspec.convert(plain | more, Command)

    def _kill(self, engine: ReferenceEngine) -> None:
        settings = engine.settings
        engine.stop()
        engine.settings = settings

    def _settle_down(self) -> None:
        """Let an engine whose trainer was killed notice it."""
        until = time.monotonic() + 5.0
        for engine in self.engines:
            while is_paused(engine.url) is None and time.monotonic() < until:
                time.sleep(0.05)
