"""The engines of a session: calls to all of them at once, and who belongs to the group."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from weightwire import addresses
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.engine import Engine
from weightwire.errors import ControlError, StateError, WeightwireError
from weightwire.fanout import wait_for_all
from weightwire.messages import EngineInfo
from weightwire.states import EngineState

log = logging.getLogger(__name__)
T = TypeVar("T")
MakeEngine = Callable[[str, Deadline], Engine]

PATIENCE = 0.5
"""The part of the time left that one engine may take to answer, so that the others can go on without it."""


class Engines:
    """All of them, in the order of their rank offsets; iterating gives those in the group.

    Attributes:
        members: all, also those that are lost.
        readmit: the next probe asks the lost ones too.
    """

    def __init__(self, members: Sequence[Engine], make: MakeEngine) -> None:
        """Keep the order.

        Args:
            members: those there are.
            make: finds out what answers at an address, and makes an engine of it.
        """
        self.members = list(members)
        self._make = make
        self.readmit = False
        self._group: list[Engine] | None = None
        self._in_flight: list[Call[Any]] = []

    def __iter__(self) -> Iterator[Engine]:
        """Iterate over the group: all members, but those that are lost."""
        return iter(self.members if self._group is None else self._group)

    def infos(self) -> tuple[EngineInfo, ...]:
        """What is known of each in the group that was probed."""
        return tuple(engine.info for engine in self if engine.info is not None)

    def states(self) -> dict[str, EngineState]:
        """The state of each member, by URL."""
        return {engine.url: engine.state for engine in self.members}

    def lost(self) -> list[str]:
        """The members that are lost, by URL."""
        return [engine.url for engine in self.members if engine.state is EngineState.LOST]

    def all(self, work: Callable[[Engine], T], doing: str, deadline: Deadline) -> list[T]:
        """Do *work* with each in the group at the same time; an error says which engine it came from."""
        calls = [self.remember(Call(_placed(work, engine), doing=doing)) for engine in self]
        return wait_for_all(calls, deadline)

    def remember(self, call: Call[T]) -> Call[T]:
        """Keep a call in mind until it has come to its end."""
        self._in_flight = [*(other for other in self._in_flight if not other.done), call]
        return call

    def quiesce(self, deadline: Deadline) -> None:
        """Wait until every call that was left behind has come to its end, or the time is over.

        What is asked or told meanwhile would be overtaken: a pause that was given up still pauses.
        """
        for call in self._in_flight:
            call.wait(deadline.remaining())
        self._in_flight = [call for call in self._in_flight if not call.done]

    def probe(self, deadline: Deadline) -> tuple[EngineInfo, ...]:
        """Ask each how it stands. The first time all must answer; later those that do not are lost, and left out.

        Those that are lost already are asked only if :attr:`readmit` says so, or if all are.

        Raises:
            WeightwireError: what an engine said, if none answers, if one is unfit, or if it is the first time.
        """
        if self._group is None:
            infos = self.all(lambda engine: engine.probe(deadline), "probing the engines", deadline)
            self._group = list(self.members)
            return tuple(infos)
        alive = [engine for engine in self.members if engine.state is not EngineState.LOST]
        self._group = list(self.members) if self.readmit or not alive else alive
        self.readmit = False
        answers = self.all(lambda engine: _probed(engine, deadline), "probing the engines", deadline)
        self._group = [e for e, answer in zip(self._group, answers, strict=True) if isinstance(answer, EngineInfo)]
        silent = [answer for answer in answers if isinstance(answer, WeightwireError)]
        if not self._group:
            raise silent[0]
        return self.infos()

    def add(self, url: str, deadline: Deadline, *, fit: Callable[[EngineInfo], object]) -> Engine:
        """Take one more into the group, behind the others. It is paused, and stays so until a push reached it.

        Args:
            url: its base URL.
            deadline: for finding out what it is, and pausing it.
            fit: raises if the engine can't be fed with what the others are fed.

        Raises:
            StateError: there is one with that address, or the engine can't take an update.
            WeightwireError: it can't be reached or used; it was not touched.
        """
        url = addresses.checked(url)
        if any(addresses.same(member.url, url) for member in self.members):
            raise StateError(f"{url} is an engine of this session already.", hint="session.recover() takes it back")
        engine = self._make(url, deadline)
        try:
            fit(engine.probe(deadline))
            engine.hold_back(deadline)
        except BaseException:
            engine.control.close()
            raise
        self._group = [*self, engine]
        self.members.append(engine)
        return engine


def _placed(work: Callable[[Engine], T], engine: Engine) -> Callable[[], T]:
    def placed() -> T:
        try:
            return work(engine)
        except WeightwireError as error:
            raise error.at(engine=engine.url) from error.__cause__

    return placed


def _probed(engine: Engine, deadline: Deadline) -> EngineInfo | WeightwireError:
    was_lost = engine.state is EngineState.LOST
    try:
        return engine.probe(deadline.at_most(PATIENCE * deadline.remaining()))
    except ControlError as error:
        engine.state = EngineState.LOST
        return _left_out(engine, error)
    except StateError as error:
        if not was_lost:  # it is asleep, for one: not for us to go on without it
            raise
        return _left_out(engine, error)


def _left_out(engine: Engine, error: WeightwireError) -> WeightwireError:
    log.warning("%s is lost, and left out of the group: %s", engine.url, error.message)
    return error.at(engine=engine.url)
