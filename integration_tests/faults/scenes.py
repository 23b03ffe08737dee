"""Plays of their own, for what no single fault in a server brings about: up to the fault, and through it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import requests
from speech import Answer
from trainers import Gone

if TYPE_CHECKING:
    from play import Play

SECOND = "second engine: "
"""What follows is a fault in the second of two engines."""

LATE = "one joins late: "
"""What follows is a fault in the first engine, in the first push after the second has joined."""


def scene(play: Play) -> Answer:
    """Play the scene that the row names."""
    name = play.row.scene
    if name.startswith(SECOND):
        play.must("connect")
        play.engines[1].set_faults(name.removeprefix(SECOND))
        return play.do("push", version="B")
    if name.startswith(LATE):
        _joins_late(play)
        play.engines[0].set_faults(name.removeprefix(LATE))
        return play.do("push", version="B")
    return _SCENES[name](play)


def _joins_late(play: Play) -> Answer:
    """The second engine joins a session that the first is in."""
    first, second = (engine.url for engine in play.engines)
    play.must("connect", urls=[first])
    play.must("push", weights="A", version="A")
    return play.do("add", urls=[second])


def _inside_anothers_transfer(play: Play) -> Answer:
    other, play.trainer = play.trainer, play.stage.trainers.next()
    play.others.append(other)
    other.do(play.command("connect", timeout=60.0))
    command = play.command("push", version="B", halt="in transfer", timeout=60.0)
    other.answer(other.begin(command), command)
    return play.do("connect")


def _restarted(play: Play) -> Answer:
    play.must("connect")
    play.must("push", weights="A", version="A")
    play.stage.kill(play.engines[0])
    play.stage.revive(play.engines[0])
    return play.do("push", version="B")


def _second_killed(play: Play) -> Answer:
    play.must("connect")
    play.must("push", weights="A", version="A")
    play.stage.kill(play.engines[1])
    return play.do("push", version="B")


def _killed_in_transfer(play: Play) -> Answer:
    play.must("connect")
    command = play.command("push", version="B", halt="in transfer")
    halted = play.trainer.answer(play.trainer.begin(command), command)
    assert halted.halted, halted
    began = time.monotonic()
    call = play.trainer.next_line()
    play.stage.kill(play.engines[0])
    play.trainer.signal(signal.SIGUSR1)
    answer = play.trainer.answer(call, command)
    play.timed(time.monotonic() - began, command)
    return answer


def _left_open(play: Play) -> Answer:
    requests.post(f"{play.engines[0].url}/start_weight_update", json={}, timeout=30).raise_for_status()
    play.must("connect")
    return play.do("push", version="B")


def _tampered(play: Play) -> Answer:
    play.must("connect", tamper=True)
    return play.do("push", version="B")


def _killed_before_close(play: Play) -> Answer:
    play.must("connect")
    play.must("push", version="B")
    play.stage.kill(play.engines[0])
    return play.do("close")


_SCENES: dict[str, Callable[[Play], Answer]] = {
    "one joins late": _joins_late,
    "inside another's transfer": _inside_anothers_transfer,
    "restarted between rounds": _restarted,
    "second engine killed between rounds": _second_killed,
    "killed in transfer": _killed_in_transfer,
    "left open by a dead client": _left_open,
    "another version is read back": _tampered,
    "killed before close": _killed_before_close,
}


def struck(play: Play) -> Answer:
    """A signal reaches the trainer where the row says."""
    name, _, point = play.row.trainer.partition(" ")
    number = signal.Signals[name]
    play.must("connect")
    if point == "after the push":
        play.must("push", version="B")
        play.trainer.signal(number)
        return Answer(error="-")
    command = play.command("push", version="B", halt=point)
    halted = play.trainer.answer(play.trainer.begin(command), command)
    assert halted.halted == point, halted
    began = time.monotonic()
    call = play.trainer.next_line()
    play.trainer.signal(number)
    with suppress(Gone):
        answer = play.trainer.answer(call, command)
        play.timed(time.monotonic() - began, command)
        if point == "in commit":  # it goes on beside the interrupted caller, and the next call collects it
            return msgspec.structs.replace(answer, states=play.do("wait").states)
        return answer
    play.settle_down()
    return Answer(error="-")
