"""Any sequence of calls and faults: no engine that serves holds a mix, and once the faults are gone all is mended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from weightwire.errors import (
    ChannelError,
    DeadlineExceeded,
    EngineRefused,
    EngineUnreachable,
    GarbledReply,
    UpdateFailed,
    WeightwireError,
)
from weightwire.session import Session
from weightwire.states import EngineState, SessionState

CALLS = (
    "probe",
    "init",
    "pause",
    "mark updating",
    "begin",
    "update",
    "finish",
    "read version",
    "resume",
    "is paused",
    "mark torn",
    "mark back",
    "flush",
    "close channel",
)
ERRORS: tuple[Callable[[], BaseException], ...] = (
    lambda: EngineRefused("refused", server_text="no"),
    lambda: EngineUnreachable("cut"),
    lambda: GarbledReply("garbled"),
    lambda: DeadlineExceeded("late"),
    lambda: RuntimeError("nobody foresaw this"),
)
REST = {SessionState.READY, SessionState.BROKEN, SessionState.CONNECTED}
TIMEOUT = 2.0

engines = st.integers(0, 1)
calls = st.sampled_from(CALLS)
errors = st.sampled_from(ERRORS)


class AnySequence(RuleBasedStateMachine):
    """Two engines, one trainer after another."""

    make_world: Callable[..., object]

    @initialize(keeps_version=st.booleans())
    def begin(self, keeps_version: bool) -> None:
        self.world = self.make_world(("http://e0", "http://e1"), keeps_version=keeps_version, timeout=TIMEOUT)
        self.session: Session = self.world.session()
        self.session.open()
        self.version = 0
        self.quiet = True  # no fault is set

    # Faults.

    @rule(engine=engines, step=calls, error=errors, late=st.booleans())
    def a_call_fails(self, engine: int, step: str, error: Callable[[], BaseException], late: bool) -> None:
        control = self.world.controls[engine]
        (control.fail_late if late else control.fail)[step] = error()
        self.quiet = False

    @rule(engine=engines, step=calls)
    def an_engine_dies_at(self, engine: int, step: str) -> None:
        self.world.controls[engine].kill_at = step
        self.quiet = False

    @rule(step=st.sampled_from(("prepare", "join", "send")), interrupt=st.booleans())
    def the_plane_fails(self, step: str, interrupt: bool) -> None:
        self.world.plane.fail[step] = KeyboardInterrupt() if interrupt else ChannelError("broken")
        self.quiet = False

    @rule(group=st.integers(0, 2))
    def the_source_fails(self, group: int) -> None:
        self.world.source.fail_at = group
        self.quiet = False

    @rule(engine=engines)
    def an_engine_is_restarted(self, engine: int) -> None:
        self.world.controls[engine].server.start()

    @rule()
    def the_faults_are_gone(self) -> None:
        self.world.mend_everything()
        self.quiet = True

    # Calls.

    @rule(wait=st.booleans())
    def push(self, wait: bool) -> None:
        self.version += 1
        receipt = self._attempt(lambda: self.session.push(self.version, wait=wait))
        if receipt is not None and receipt.committed:
            self._serves(receipt.engines, str(self.version))

    @rule(engine=engines, step=calls, error=errors, late=st.booleans())
    def push_while_a_call_fails(self, engine: int, step: str, error: Callable[[], BaseException], late: bool) -> None:
        self.a_call_fails(engine, step, error, late)
        self.push(wait=True)
        self.the_faults_are_gone()

    @rule(engine=engines, step=calls)
    def push_while_an_engine_dies(self, engine: int, step: str) -> None:
        self.an_engine_dies_at(engine, step)
        self.push(wait=True)
        self.the_faults_are_gone()

    @rule()
    def collect(self) -> None:
        self._attempt(self.session.wait)

    @rule()
    def recover(self) -> None:
        self._attempt(self.session.recover)

    @precondition(lambda self: len(self.world.controls) < 3)
    @rule(step=st.sampled_from(("", "probe", "pause")))
    def a_server_joins(self, step: str) -> None:
        before = list(self.world.controls)
        self.world.late = lambda control: control.fail.update({step: EngineRefused("no")} if step else {})
        if self._attempt(lambda: self.session.add("http://e2") or True) is None:
            self.world.controls[:] = before  # it is none of this session's
        else:
            assert self.world.controls[-1].server.paused

    @rule()
    def another_session(self) -> None:
        self.session.close()
        assert self.session.state is SessionState.CLOSED
        self._reopen()

    @rule(step=calls)
    def the_trainer_is_killed(self, step: str) -> None:
        for control in self.world.controls:
            control.end_at = step
        self.version += 1
        with contextlib.suppress(BaseException):  # nobody is left to see it
            self.session.push(self.version)
        self.world.plane.wire.cut()
        for control in self.world.controls:
            control.end_at, control.ended = "", False
        self._reopen()

    @precondition(lambda self: self.quiet)
    @rule()
    def without_faults_the_next_pushes_mend_everything(self) -> None:
        self._mended()

    # What always holds.

    @invariant()
    def nobody_committed_a_crime(self) -> None:
        for control in self.world.controls:
            assert control.server.crimes == []

    @invariant()
    def no_engine_that_serves_holds_a_mix(self) -> None:
        self._attempt(self.session.wait)
        for control in self.world.controls:
            server = control.server
            assert server.paused or not server.mixed or not server.alive

    @invariant()
    def a_server_that_joined_serves_nothing_older(self) -> None:
        for control in self.world.controls[2:]:
            assert control.server.paused or control.server.weights != "initial" or not control.server.alive

    @invariant()
    def what_is_said_to_be_whole_is_whole(self) -> None:
        states = self.session.engine_states
        for control in self.world.controls:
            if states[control.url] is EngineState.WHOLE and control.server.alive:
                assert not control.server.mixed

    @invariant()
    def the_session_has_come_to_rest(self) -> None:
        assert self.session.state in REST

    def teardown(self) -> None:
        if hasattr(self, "session"):
            self.world.mend_everything()
            for control in self.world.controls:
                if not control.server.alive:
                    control.server.start()
            self._mended()

    def _attempt(self, work: Callable[[], object]) -> object:
        began = time.monotonic()
        try:
            return work()
        except (WeightwireError, KeyboardInterrupt, RuntimeError) as error:
            return self._told(error)
        finally:
            assert time.monotonic() - began < TIMEOUT + 2.0

    def _told(self, error: BaseException) -> None:
        if isinstance(error, UpdateFailed):
            assert set(error.engine_states) == {control.url for control in self.world.controls}

    def _reopen(self) -> None:
        self.session = self.world.session()
        if self._attempt(lambda: self.session.open() or True) is None:
            self.world.mend_everything()
            self.quiet = True
            for control in self.world.controls:
                if not control.server.alive:
                    control.server.start()
            self.session = self.world.session()
            self.session.open()

    def _mended(self) -> None:
        """At most one push fails, for a restart that no version tells of; the one after it reaches every engine."""
        for control in self.world.controls:
            if not control.server.alive:
                control.server.start()
        self._attempt(self.session.wait)
        self.version += 1
        self._attempt(lambda: self.session.push(self.version))
        self.session.recover()
        self.version += 1
        receipt = self.session.push(self.version)
        assert receipt.engines == tuple(control.url for control in self.world.controls)
        self._serves(receipt.engines, str(self.version))

    def _serves(self, urls: tuple[str, ...], version: str) -> None:
        for control in self.world.controls:
            if control.url in urls and control.server.alive:
                assert (control.server.weights, control.server.paused) == (version, False)


@pytest.mark.timeout(240)
def test_any_sequence_of_calls_and_faults_ends_well(make_world):
    AnySequence.make_world = staticmethod(make_world)
    case = AnySequence.TestCase
    case.settings = settings(max_examples=150, stateful_step_count=20, deadline=None)
    case("runTest").runTest()
