"""How a cell is played: to the fault, through it, and on to where weights C are in."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec
import requests
from cells import Cell, Found
from judge import is_paused
from scenes import scene, struck
from speech import Answer, Command
from stage import SLACK, Stage
from trainers import Gone, TrainerProcess, pair
from weightwire.calls import Call

WORDS = {"raises": "middle", "raises before its collective": "before the collective", "dies in mid-stream": "die"}
"""What the second rank is told, by the row's word for it."""

ENDED = "-"
"""The error of a trainer that is not there any more to raise one."""


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
            return scene(self)
        if self.row.ranks:
            return self._ranks()
        if self.row.trainer:
            return struck(self)
        return self._injected()

    def _injected(self) -> Answer:
        early = self.row.phase in {"connect", "open"}
        if not early:
            self.must("connect")
        if self.row.phase == "close":
            self.must("push", version="B")
        if self.row.inject:
            self.engines[0].set_faults(self.row.inject)
        if early or self.row.phase == "close":
            return self.do("connect" if early else "close")
        return self.do("push", version="B", fail=self.row.source)

    def _ranks(self) -> Answer:
        ranks = self.others = pair()
        commands = [self.command("connect"), self.command("connect")]
        self._both(ranks, commands)
        fail = WORDS.get(self.row.ranks, "")
        if self.row.ranks == "dies before the round":
            ranks[1].signal(signal.SIGKILL)
        self.trainer = ranks[0]
        commands = [self.command("push", version="B"), self.command("push", version="B", fail=fail)]
        answer = self._both(ranks, commands)
        self.timed(answer.seconds, commands[0])
        return answer

    def _both(self, ranks: Sequence[TrainerProcess], commands: Sequence[Command]) -> Answer:
        """Have both ranks do something; what the first says. If it fails, it must fail on every rank that lives."""
        calls = [rank.begin(command) for rank, command in zip(ranks, commands, strict=True)]
        answers = [_last_words(*each) for each in zip(ranks, calls, commands, strict=True)]
        said = {bool(answer.error) for answer in answers if answer.error != ENDED}
        assert len(said) == 1, f"only one rank raised: {answers}"
        return answers[0]

    # Afterwards.

    def _found(self, answer: Answer) -> Found:
        """What it came to, judged from outside; the session's word must agree with that of a new process."""
        by_session = self.row.phase not in {"connect", "open", "close"} and answer.error != ENDED
        seen = [self.stage.judge.status(engine.url) if engine.alive else "lost" for engine in self.engines]
        told = [answer.states.get(engine.url, "") for engine in self.engines] if by_session else seen
        return Found(
            raises=answer.error,
            states=tuple(self._agreed(*pair) for pair in zip(told, seen, strict=True)),
            serves=tuple(self.stage.look(engine) for engine in self.engines),
            next="",
            over=self.over,
            text=answer.text,
        )

    def _agreed(self, told: str, seen: str) -> str:
        """The state both say. Where no version tells, a whole engine that is left paused looks torn to a stranger."""
        careful = (told, seen) == ("whole", "torn") and not self.cell.tells_versions
        return told if told == seen or careful else f"{told} by the session, {seen} by another process"

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
                        self.stage.kill(engine)
                        self.stage.revive(engine)
            case "recover":
                self.must("recover")
            case "connect":
                self._fresh_trainer()
                self.must("connect")
                self.must("push", weights="C", version="C")
            case "push":
                ranks = [rank for rank in self.others if rank.alive] if self.row.ranks else []
                if ranks:
                    answer = self._both(ranks, [self.command("push", weights="C", version="C")] * len(ranks))
                    assert not answer.error, answer.text
                else:
                    self.must("push", weights="C", version=f"C{time.monotonic_ns()}")

    def _fresh_trainer(self) -> None:
        """Another process, unless the one in use has no session that matters any more."""
        for process in self.others:
            process.stop()
        if self.row.trainer or self.row.ranks:
            self.stage.trainers.give_up()
        self.trainer = self.stage.trainers.current()

    # What a play is made of.

    def do(self, what: str, **more: object) -> Answer:
        """Give the trainer a command, and wait for its answer."""
        command = self.command(what, **more)
        answer = self.trainer.do(command)
        self.timed(answer.seconds, command)
        return answer

    def must(self, what: str, **more: object) -> None:
        """The same, where it has to work out."""
        answer = self.do(what, **{"timeout": 20.0, **more} if what != "connect" else more)
        assert not answer.error, f"{what}: {answer.text}"

    def timed(self, seconds: float, command: Command) -> None:
        """Take note of a command that was late."""
        self.over = max(self.over, seconds - command.timeout - SLACK)

    def command(self, what: str, **more: object) -> Command:
        """A command for a trainer of this cell."""
        plane = "stock-shim" if self.cell.stock else ""
        urls = tuple(engine.url for engine in self.engines)
        plain = {"do": what, "urls": urls, "timeout": self.row.timeout, "plane": plane}
        return msgspec.convert(plain | more, Command)

    def settle_down(self) -> None:
        """Let an engine whose trainer was killed notice it."""
        until = time.monotonic() + 5.0
        for engine in self.engines:
            while is_paused(engine.url) is None and time.monotonic() < until:
                time.sleep(0.05)


def _last_words(rank: TrainerProcess, call: Call[Answer], command: Command) -> Answer:
    """The answer of a rank, or that there is none."""
    try:
        return rank.answer(call, command)
    except Gone:
        return Answer(error=ENDED)
