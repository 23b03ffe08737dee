"""One engine of a session: its control plane, and what is known of what it holds.

The rules that keep an engine from serving a mix of weights live here, whatever the rest of a session does: from the
moment an update is opened until it is committed an engine counts as torn; a torn one is never resumed; it takes another
update only after it was flushed; and never are two updates open at once.
"""

from __future__ import annotations

from contextlib import suppress
from enum import IntEnum

from weightwire.deadlines import Deadline
from weightwire.errors import ControlError, EngineRefused, StateError, UpdateFailed, WeightwireError
from weightwire.messages import CachePolicy, EngineInfo, PauseMode, RoundMode, TransferPlan
from weightwire.planes import ControlPlane
from weightwire.states import MARK, RECOVERED, EngineState

UPDATING_MARK = MARK + "updating:{round}"
"""What the server's weight version says while a round may tear it; it outlives a trainer that dies."""

TORN_MARK = MARK + "{round}:torn"
"""What it says after a round failed."""


class Step(IntEnum):
    """How far the round under way has come with an engine."""

    IDLE = 0
    """It was not reached, or is done with."""
    BEGINNING = 1
    """It may be marked, or receives into spare memory: what it serves is untouched."""
    OPEN = 2
    """Its live weights may be a mix."""
    CLOSING = 3
    """It was told to commit, and its answer is not in."""


class Engine:
    """One engine.

    Attributes:
        url: its base URL.
        control: its control plane.
        info: what the last probe found.
        state: what it holds.
        held: this session paused it, and has not resumed it.
        behind: it joined late, or was found paused, and no push has reached it yet: it may not serve.
        joined: its workers may be in a channel of this session.
    """

    def __init__(self, url: str, control: ControlPlane) -> None:
        """Take *control* over; :meth:`probe` fills in the rest."""
        self.url = url
        self.control = control
        self.info: EngineInfo | None = None
        self.state = EngineState.WHOLE
        self.held = False
        self.behind = False
        self.joined = False
        self._step = Step.IDLE
        self._flushed = False
        self._version: str | None = None
        self._version_before: str | None = None

    def probe(self, deadline: Deadline) -> EngineInfo:
        """Ask what it is and how it stands.

        What this session knows to be torn or lost stays torn, whatever the engine looks like: only a commit ends that.
        """
        self.info = self.control.probe(deadline)
        self._version = self.info.weight_version
        if self.state is EngineState.WHOLE:
            self.state = self.info.state
        elif self.state is EngineState.LOST:
            self.state, self._flushed = EngineState.TORN, False
        if self.info.paused and not self.held:
            self.behind = True  # somebody had a reason to pause it, which only new weights do away with
        return self.info

    def as_left(self, deadline: Deadline) -> bool:
        """Ask whether it is as this session left it; False if it was restarted, or pushed to by another client.

        Before vLLM 0.27 nothing tells a restart. But an engine that is paused, and not by this session, may be in the
        middle of another's update, and counts as torn.
        """
        try:
            said = self.control.weight_version(deadline)
            if said is not None:
                return said == self._version
            paused = self.control.is_paused(deadline)
        except (ControlError, StateError):
            return False
        if paused and not self.held:
            self.state, self._flushed = EngineState.TORN, False
        return paused or not self.held

    def pause(self, mode: PauseMode, cache: CachePolicy, deadline: Deadline) -> None:
        """Stop generation."""
        self.held = True
        self.control.pause(mode, cache, deadline)

    def hold_back(self, deadline: Deadline) -> None:
        """Keep one that joins late from serving: it is paused, and a commit must reach it before it may go on.

        Raises:
            WeightwireError: it could not be paused, and is not held back.
        """
        self.behind = True
        try:
            self.pause(PauseMode.KEEP, CachePolicy.RESET, deadline)
        except BaseException:
            self.behind = False
            with suppress(WeightwireError):
                self.resume(deadline)  # a pause whose answer got lost may have been done
            raise

    def begin(self, plan: TransferPlan, deadline: Deadline) -> None:
        """Open an update. In a direct round the engine is marked first, and counts as torn from here on.

        Raises:
            StateError: an update is open already, or the engine is not fit for one.
        """
        self._refuse_unfit()
        self._step, self._version_before = Step.BEGINNING, self._version
        if plan.mode is RoundMode.DIRECT:
            self._mark(UPDATING_MARK.format(round=plan.round_id), deadline)
            self._step, self.state, self._flushed = Step.OPEN, EngineState.TORN, False
        self.control.begin(plan, deadline)

    def finish(self, plan: TransferPlan, deadline: Deadline) -> None:
        """Commit. The engine is whole when this returns."""
        self._step, self.state = Step.CLOSING, EngineState.TORN
        try:
            self.control.finish(plan, deadline)
        except EngineRefused:
            self._step = Step.OPEN  # it says itself that it did not; a lost answer says nothing
            raise
        self._committed(plan.version)

    def read_back(self, version: str, deadline: Deadline) -> str:
        """Ask which version it holds.

        Returns:
            What was found, as a sentence; empty where the engine keeps no version.

        Raises:
            UpdateFailed: it holds another one.
        """
        self._step = Step.CLOSING
        held = self.control.weight_version(deadline)
        if held not in {None, version}:
            self._step, self.state = Step.OPEN, EngineState.TORN
            raise UpdateFailed(f"The engine says it holds version {held!r}, not {version!r}.")
        self._step = Step.IDLE
        return f"{self.url} says it holds version {held}" if held is not None else ""

    def resume(self, deadline: Deadline) -> None:
        """Let it generate, if this session paused it and it holds what it should. Never touches a torn engine."""
        if self.state is not EngineState.WHOLE or self.behind or not self.held:
            return
        try:
            self.control.resume(deadline)
        except ControlError:
            deadline.check("resuming the engine")
            self.control.resume(deadline)  # resuming twice does no harm, and a paused engine serves nobody
        self.held = False

    def mend(self, deadline: Deadline) -> None:
        """Bring a torn engine to where a full push can make it whole: paused, and with no half-done update.

        Raises:
            StateError: it is lost.
            ControlError: it could not be flushed. If it says so itself, it is lost.
        """
        if self.state is EngineState.WHOLE:
            return
        if self.state is EngineState.LOST:
            raise StateError("The engine is lost, and beyond recovery.", hint="restart the server, then push")
        self.pause(PauseMode.KEEP, CachePolicy.RESET, deadline)
        try:
            self.control.flush(deadline)
        except EngineRefused:
            self.state = EngineState.LOST
            raise
        self._flushed, self._step = True, Step.IDLE

    def tell(self, deadline: Deadline) -> None:
        """Let the server say that it was recovered, where it keeps a version: who asks it next may be anybody."""
        if self.state is EngineState.TORN and self._flushed:
            with suppress(WeightwireError):
                self._mark(RECOVERED, deadline)

    def settle(self, plan: TransferPlan, deadline: Deadline) -> None:
        """Find out what a failed round left here; close and mark what it left open. Raises nothing."""
        step, self._step = self._step, Step.IDLE
        if step is Step.BEGINNING:
            self._take_back(plan, deadline)
        if step >= Step.OPEN:
            self.state = self._left(plan, step, deadline)
        elif self.held and self._paused(deadline) is None:
            self.state = EngineState.LOST

    def _refuse_unfit(self) -> None:
        if self._step is not Step.IDLE:
            raise StateError("An update of this engine is open already.", hint="call session.recover()")
        if self.state is EngineState.LOST or (self.state is EngineState.TORN and not self._flushed):
            raise StateError(f"The engine is {self.state}, and was not recovered.", hint="call session.recover()")

    def _mark(self, version: str, deadline: Deadline) -> None:
        if self.control.mark(version, deadline):
            self._version = version

    def _committed(self, version: str) -> None:
        self._step, self.state, self.behind = Step.IDLE, EngineState.WHOLE, False
        if self._version is not None:
            self._version = version

    def _take_back(self, plan: TransferPlan, deadline: Deadline) -> None:
        """Undo a beginning that reached nothing live."""
        with suppress(WeightwireError):
            if plan.mode is RoundMode.STAGED:
                self.control.abort_update(plan, deadline)
            elif self._version_before is not None:
                self._mark(self._version_before, deadline)

    def _left(self, plan: TransferPlan, step: Step, deadline: Deadline) -> EngineState:
        tells = plan.mode is RoundMode.DIRECT or self._version_before != plan.version  # a staged round leaves no mark
        if step is Step.CLOSING and tells and self._says_it_holds(plan.version, deadline):
            self._committed(plan.version)
            return EngineState.WHOLE
        paused = self._paused(deadline)
        if paused is None:
            return EngineState.LOST
        try:
            if not paused:  # somebody resumed it, or its process was replaced by a fresh one
                self.pause(PauseMode.KEEP, CachePolicy.RESET, deadline)
        except WeightwireError:
            return EngineState.LOST
        with suppress(WeightwireError):
            self._mark(TORN_MARK.format(round=plan.round_id), deadline)
        return EngineState.TORN

    def _says_it_holds(self, version: str, deadline: Deadline) -> bool:
        """Whether a commit whose answer got lost was done: the version is set with it, and was another before."""
        try:
            return self.control.weight_version(deadline) == version
        except WeightwireError:
            return False

    def _paused(self, deadline: Deadline) -> bool | None:
        """Whether it is paused, by its own word; None where the engine, not its web server, gives none."""
        try:
            return self.control.is_paused(deadline)
        except WeightwireError:
            return None
