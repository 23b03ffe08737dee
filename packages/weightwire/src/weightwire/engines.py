"""The engines of a session: calls to all of them at once, and the state each is known to be in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from weightwire.deadlines import Deadline
from weightwire.errors import ControlError, WeightwireError
from weightwire.fanout import everywhere
from weightwire.messages import EngineInfo, TransferPlan
from weightwire.planes import ControlPlane
from weightwire.states import EngineState

T = TypeVar("T")

UPDATING_MARK = "weightwire:updating:{round}"
"""What the server's weight version says while a round may tear it; it outlives a trainer that dies."""

TORN_MARK = "weightwire:{round}:torn"
"""What it says after a round failed."""


class Engine:
    """One engine: its control plane, and what is known of it."""

    def __init__(self, url: str, control: ControlPlane) -> None:
        """Take *control* over; :meth:`weightwire.planes.ControlPlane.probe` fills in the rest."""
        self.url = url
        self.control = control
        self.info: EngineInfo | None = None
        self.state = EngineState.WHOLE
        self.touched = False
        """Whether the round under way has reached the live weights of this engine."""
        self.held = False
        """Whether this session paused it and has not resumed it."""

    def probe(self, deadline: Deadline) -> EngineInfo:
        """Ask how it stands, and keep the answer."""
        self.info = self.control.probe(deadline)
        self.state = self.info.state
        return self.info

    def tear(self, plan: TransferPlan, deadline: Deadline) -> EngineState:
        """Settle what a failed direct round left here, and mark it on the server where that can be done.

        An engine that no longer answers through its core is lost; nothing here raises.
        """
        self.state = EngineState.TORN
        try:
            self.control.is_paused(deadline)
            self.control.mark(TORN_MARK.format(round=plan.round_id), deadline)
        except ControlError:
            self.state = EngineState.LOST
        return self.state


class Engines:
    """All of them, in the order of their rank offsets."""

    def __init__(self, members: Sequence[Engine]) -> None:
        """Keep the order."""
        self.members = list(members)

    def __iter__(self) -> Iterator[Engine]:
        """Iterate over the members."""
        return iter(self.members)

    def infos(self) -> tuple[EngineInfo, ...]:
        """What is known of each that was probed."""
        return tuple(engine.info for engine in self.members if engine.info is not None)

    def states(self) -> dict[str, EngineState]:
        """The state of each, by URL."""
        return {engine.url: engine.state for engine in self.members}

    def all(self, work: Callable[[Engine], T], doing: str, deadline: Deadline) -> list[T]:
        """Do *work* with each at the same time; an error says which engine it came from."""

        def placed(engine: Engine) -> T:
            try:
                return work(engine)
            except WeightwireError as error:
                raise error.at(engine=engine.url) from error.__cause__

        return everywhere(self.members, placed, doing=doing, deadline=deadline)
