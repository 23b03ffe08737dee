"""Round after round of one session, with faults at random: ``python integration_tests/faults/soak.py [--rounds 1000]``.

Every version that was committed is read back from outside; a round that fails must leave the engine as the error says.
At the end the trainer's process must not have grown: not in memory, nor in file descriptors, nor in threads. The seed
is printed, and ``--seed`` plays the same rounds again. ``--real "0.32.0 stock"`` does it to a real server.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence

import msgspec
import requests
from cells import Cell, Row
from real_stage import RealStage
from speech import Answer, Command
from stage import SLACK, ReferenceStage, Stage
from vital_signs import Signs, slope, vital_signs

TIMEOUT = 8.0
FAULTY = 0.2
"""The part of the rounds in which something goes wrong."""
LETHAL = 3
WARM = 10
"""Rounds after which the first signs are taken: by then the channel is open and everything was used once."""
SETTLED = 200
"""Rounds after which memory must not grow: allocators take their time."""
KB_A_ROUND = 5.0
STILL_SECONDS = 1.5
"""How long descriptors and threads must stay as they are to count: a thread waits a second for more work, then ends."""
SETTLE_SECONDS = 10.0
"""For what a failed round left behind (a call that was given up) to come to its end, before the last signs."""

BY_CALL = (
    "weight_info:refuse=500,it broke@2",
    "pause:refuse=503,not now",
    "pause:cut:after",
    "mark:cut:after",
    "start:refuse=500,it broke",
    "start:cut:after",
    "update:refuse=500,it broke",
    "update:cut:after",
    "finish:refuse=500,it broke",
    "finish:garbage",
    "finish:cut:after",
    "finish:truncate",
    "resume:refuse=503,not now",
    "resume:cut@*",
)
IN_THE_COLLECTIVE = ("receive:refuse=no room@1", "receive:refuse=no room@4", "receive:stall=2@3")
IN_THE_SOURCE = ("first", "middle", "last")
KILLING = ("start:die", "update:die", "finish:die", "resume:die")


BEFORE = {"connect", "recover", "open"}
PAUSED = {"paused", "paused B"}
RESTARTED = "default"
"""The version of a server that nothing was pushed to: it serves A, and was started again since the session knew it."""


class Trouble(msgspec.Struct, frozen=True):
    """What goes wrong in a round: a fault in the server, or in the source; or nothing."""

    inject: str = ""
    source: str = ""


def troubles(rounds: int, seed: int, *, real: bool) -> list[Trouble]:
    """What goes wrong in each round. The last is a good one."""
    dice = random.Random(seed)
    faults = [Trouble(inject=fault) for fault in (*BY_CALL, *(() if real else IN_THE_COLLECTIVE))]
    faults += [Trouble(source=at) for at in IN_THE_SOURCE]
    chosen = [dice.choice(faults) if dice.random() < FAULTY else Trouble() for _ in range(rounds)]
    for number in dice.sample(range(WARM + 1, rounds - 1), LETHAL):
        chosen[number] = Trouble(inject=dice.choice(KILLING))
    return [*([Trouble()] * WARM), *chosen[WARM:-1], Trouble()]


class Soak:
    """One session, and what is found out about it."""

    def __init__(self, stage: Stage, place: str) -> None:
        """Connect."""
        row = Row(phase="transfer", fault="soak", on=(place,), raises="", state="whole", serves="A", next="push")
        self._cell = Cell(row, place)
        self._stage = stage
        self._engine = stage.engines(self._cell)[0]
        self._trainer = stage.trainers.current()
        self._holds = "A"
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.signs: list[Signs] = []
        self.warm: Signs | None = None
        answer = self._trainer.do(self._command("connect"))
        assert not answer.error, answer.text

    def play(self, number: int, trouble: Trouble) -> None:
        """One round, and what is left of it."""
        if trouble.inject:
            self._engine.set_faults(trouble.inject)
        weights, version = "ABC"[number % 3], f"round {number}"
        answer = self._trainer.do(self._command("push", weights=weights, version=version, fail=trouble.source))
        if trouble.inject:
            self._take_away_faults()
        state = answer.states.get(self._engine.url, "nothing")
        for wrong in self._wrong(answer, state, weights, version):
            self.wrong.append(f"round {number}, {trouble.inject or trouble.source or 'no trouble'}: {wrong}")
        self.outcomes["committed" if not answer.error else f"failed and {state}"] += 1
        if self._stage.look(self._engine) == "nobody":
            self._stage.kill(self._engine)
            self._stage.revive(self._engine)
            self.outcomes["restarts"] += 1
        self.signs.append(vital_signs(self._trainer.pid))
        if len(self.signs) == WARM:
            self.warm = self.settled()

    def settled(self) -> Signs:
        """The signs once they stand still, and are those of :attr:`warm` where there are such, or the time is over."""
        now = time.monotonic()
        until, since, signs = now + SETTLE_SECONDS, now, vital_signs(self._trainer.pid)
        while now < until and (now - since < STILL_SECONDS or not signs.holds_as_much_as(self.warm or signs)):
            time.sleep(0.2)
            now, before, signs = time.monotonic(), signs, vital_signs(self._trainer.pid)
            since = since if signs.holds_as_much_as(before) else now
        return signs

    def _wrong(self, answer: Answer, state: str, weights: str, version: str) -> list[str]:
        """What is not as it should be after a round."""
        wrong = [f"{answer.seconds:.1f} s, of {TIMEOUT:g}"] if answer.seconds > TIMEOUT + SLACK else []
        looks, says = self._stage.look(self._engine), self._version()
        if says == version:
            self._holds = weights
        if not answer.error and (looks, says) != (weights, version):
            wrong.append(f"committed {weights} as {version!r}, and it serves {looks} as {says!r}")
        fitting = {"whole": {self._holds, *PAUSED}, "torn": PAUSED, "lost": {"nobody", *PAUSED}}
        if answer.phase in BEFORE:  # not mended, it counts as what the last round left, though it died since
            fitting["torn"] = fitting["lost"] | ({"A"} if says == RESTARTED else set())
        if answer.error and (not _in_order(answer) or looks not in fitting[state]):
            wrong.append(f"{state}, and it serves {looks} as {says!r}: {answer.error}: {answer.text}")
        return wrong

    def _take_away_faults(self) -> None:
        try:
            self._engine.set_faults()
        except requests.RequestException:
            assert not self._engine.alive or self._stage.look(self._engine) == "nobody"

    def _version(self) -> str:
        """The version it says it holds, by its own word."""
        with requests.Session() as session:
            session.trust_env = False
            try:
                return str(session.get(f"{self._engine.url}/weight_info", timeout=5).json()["weight_version"])
            except (requests.RequestException, ValueError):
                return ""

    def _command(self, what: str, **more: object) -> Command:
        plane = "stock-shim" if self._cell.stock else ""
        plain = {"do": what, "urls": (self._engine.url,), "timeout": TIMEOUT, "plane": plane}
        return msgspec.convert(plain | more, Command)


def _in_order(answer: Answer) -> bool:
    """Whether an error is one that a push may raise: of a round, or of what it does before one, to mend the last."""
    return answer.error == "UpdateFailed" or answer.phase in BEFORE


def main(arguments: Sequence[str]) -> int:
    """Soak.

    Returns:
        1 if anything was not as it should be.
    """
    parser = argparse.ArgumentParser(description="Many rounds of one session, with faults at random.")
    parser.add_argument("--rounds", type=int, default=0, help="1000; 200 on a real server")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="of the faults")
    parser.add_argument("--real", default="", metavar="PLACE", help='a real server, such as "0.32.0 stock"')
    given = parser.parse_args(arguments)
    rounds = given.rounds or (200 if given.real else 1000)
    print(f"soak: {rounds} rounds on {given.real or 'a reference engine'}, seed {given.seed}", flush=True)
    stage: Stage = RealStage() if given.real else ReferenceStage()
    began = time.monotonic()
    try:
        soak = Soak(stage, given.real or "0.32.0 stock")
        for number, trouble in enumerate(troubles(rounds, given.seed, real=bool(given.real))):
            soak.play(number, trouble)
            if (number + 1) % 50 == 0:
                print(f"  {number + 1:4} rounds, {time.monotonic() - began:4.0f} s, {soak.signs[-1]}", flush=True)
        return report(soak, seconds=time.monotonic() - began)
    finally:
        stage.close()


def report(soak: Soak, *, seconds: float) -> int:
    """Print what was found; 1 if anything is not as it should be."""
    first, last, rounds = soak.warm or soak.signs[0], soak.settled(), len(soak.signs)
    wrong = list(soak.wrong)
    from_round = SETTLED if rounds > 2 * SETTLED else rounds // 2
    grows = slope([signs.memory for signs in soak.signs[from_round:]])
    if grows > KB_A_ROUND and rounds > 2 * SETTLED:
        wrong.append(f"the trainer grows by {grows:.1f} KB a round")
    if not last.holds_as_much_as(first):
        wrong.append(f"after {WARM} rounds the trainer had {first}, at the end {last}")
    for each in wrong:
        print(f"  wrong: {each}")
    told = ", ".join(f"{count} {outcome}" for outcome, count in soak.outcomes.most_common())
    print(
        f"soak: {rounds} rounds in {seconds:.0f} s: {told}; every committed version read back; "
        f"{grows:+.2f} KB a round over rounds {from_round} to {rounds}; {last.descriptors} file descriptors and "
        f"{last.threads} threads, {first.descriptors} and {first.threads} before; {len(wrong)} wrong"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
