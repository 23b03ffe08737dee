"""A session: from ``connect()`` to ``close()``, round after round, the same calls on every trainer rank."""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Sequence
from types import TracebackType
from typing import Literal, Self

from weightwire import dtypes, expected, preflight
from weightwire import plan as planning
from weightwire.agreement import Agreement, Word
from weightwire.backend import SenderBackend
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import StateError, UpdateFailed, WeightwireError
from weightwire.follower import FollowerBackend
from weightwire.lifecycle import Lifecycle
from weightwire.messages import (
    CachePolicy,
    ChannelInfo,
    EngineInfo,
    Manifest,
    PauseMode,
    Receipt,
    StateChange,
    TransferPlan,
    Window,
)
from weightwire.options import Options
from weightwire.planes import WeightSource
from weightwire.rounds import Round
from weightwire.states import EngineState, SessionState, advance

log = logging.getLogger(__name__)
_sessions = itertools.count()

CLEAN_UP_SHARE = 0.2
"""The part of the timeout that is kept for cleaning up after a failure, so that the whole still meets it."""

CLEAN_UP_SECONDS = 10.0
"""And its upper bound."""


class Session:
    """Moves one model's weights into a set of engines. Made by :func:`weightwire.connect`; not thread-safe.

    Attributes:
        state: what the session may do next.
    """

    def __init__(
        self,
        backend: SenderBackend | FollowerBackend,
        source: WeightSource,
        options: Options,
        *,
        plugins: Sequence[object],
    ) -> None:
        """Connect nothing yet: :meth:`open` does."""
        self.state = SessionState.NEW
        self._backend = backend
        self._source = source
        self._options = options
        self._lifecycle = Lifecycle(backend, plugins)
        self._agreement = Agreement(source.ranks, next(_sessions))
        self._name = secrets.token_hex(4)
        self._rounds = itertools.count(1)
        self._infos: tuple[EngineInfo, ...] = ()
        self._channel: ChannelInfo | None = None
        self._expected: expected.Expected | None = None
        self._tail: Call[Receipt] | None = None
        if isinstance(backend, SenderBackend):
            backend.progress = self._lifecycle.progress

    def __enter__(self) -> Self:
        """Use the session in a ``with`` block; it is closed at the end."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    @property
    def engines(self) -> tuple[EngineInfo, ...]:
        """What is known of the engines; empty on ranks other than the sender."""
        return self._infos

    @property
    def engine_states(self) -> dict[str, EngineState]:
        """The state each engine is in, by URL; empty on ranks other than the sender."""
        return self._backend.engines.states() if isinstance(self._backend, SenderBackend) else {}

    def open(self) -> None:
        """Probe the engines, check what will be sent against what they expect, and open the channel.

        Raises:
            WeightwireError: what is wrong; nothing was changed in any engine.
        """
        deadline = Deadline.after(self._options.timeout)
        if not self._agreement.is_sender:
            self._agreement.hear("connect", deadline)
            self._become(SessionState.CONNECTED)
            self._become(SessionState.READY)
            return
        try:
            self._connect(deadline)
            self._open_channel(self._checked_manifest(), deadline)
        except WeightwireError as error:
            self._agreement.say("connect", Word(error=error.message, hint=error.hint))
            error.at(phase="connect", rank=0)
            raise
        self._agreement.say("connect", Word())

    def push(
        self,
        version: str | int,
        *,
        pause: Literal["keep", "wait", "abort"] = "keep",
        cache: Literal["reset", "keep"] = "reset",
        wait: bool = True,
    ) -> Receipt:
        """Bring the model's weights, as they are now, into every engine. Call it on every rank.

        Args:
            version: what the engines should call these weights; it may go back (a resumed trainer).
            pause: what happens to requests in flight: continued with the new weights (``keep``), finished first
                (``wait``), or ended (``abort``).
            cache: drop the KV and prefix caches (``reset``), or keep what older weights computed (``keep``).
            wait: False returns once the bytes have left, while the engines commit and resume; the next call of this
                session, or :meth:`wait`, collects the end of it.

        Raises:
            ManifestError, CompatibilityError, ConfigurationError: refused before anything was changed.
            UpdateFailed: the round failed; ``engine_states`` says what each engine is left with. A torn engine stays
                paused, and the next push mends it.
            StateError: the session is closed, or an engine is lost.
        """
        self._collect_tail()
        self._refuse_closed()
        number = next(self._rounds)
        if not self._agreement.is_sender:
            return self._follow(str(version), f"round-{number}")
        plan = self._prepare(str(version), PauseMode(pause), CachePolicy(cache), number)
        return self._lead(plan, f"round-{number}", wait=wait)

    def wait(self) -> Receipt | None:
        """Collect the end of a ``push(wait=False)``; None where there is none. Raises what that push would have."""
        return self._collect_tail()

    def recover(self) -> None:
        """Bring torn engines back to where the next push can make them whole, and rebuild a lost channel.

        Raises:
            StateError: an engine is lost; it needs a restart.
            ControlError: an engine could not be flushed.
        """
        self._refuse_closed()
        if self._agreement.is_sender:
            self._recover(Deadline.after(self._options.timeout))

    def close(self) -> None:
        """Leave the group and drop every connection. Idempotent, and never raises for an engine that is gone."""
        if self.state is SessionState.CLOSED:
            return
        try:
            self._collect_tail()
            self._lifecycle.close_channel(Deadline.after(min(CLEAN_UP_SECONDS, self._options.timeout)))
        except WeightwireError:
            log.warning("The session did not close in order.", exc_info=True)
        finally:
            if isinstance(self._backend, SenderBackend):
                self._backend.close()
            self._become(SessionState.CLOSED)

    # The sender's part of opening.

    def _connect(self, deadline: Deadline) -> None:
        self._infos = self._lifecycle.connect(deadline)
        self._become(SessionState.CONNECTED)
        found = (expected.find(info, self._options) for info in self._infos)
        self._expected = next(filter(None, found), self._expected)

    def _checked_manifest(self) -> Manifest:
        manifest = dtypes.on_the_wire(
            self._source.manifest(), self._infos, expected=self._expected, options=self._options
        )
        preflight.check(manifest, self._infos, expected=self._expected, options=self._options)
        return manifest

    def _open_channel(self, manifest: Manifest, deadline: Deadline) -> None:
        self._channel = self._lifecycle.open_channel(self._infos, manifest, deadline)
        self._become(SessionState.READY)

    def _recover(self, deadline: Deadline) -> None:
        """Ask the engines anew, mend the torn, and open a channel if there is none."""
        self._lifecycle.close_channel(deadline)
        if self.state is not SessionState.BROKEN:
            self._become(SessionState.BROKEN)
        self._connect(deadline)
        self._lifecycle.recover(deadline)
        self._open_channel(self._checked_manifest(), deadline)

    # The sender's part of a round.

    def _prepare(self, version: str, pause: PauseMode, cache: CachePolicy, number: int) -> TransferPlan:
        """Everything that can be refused before an engine is touched."""
        deadline = Deadline.after(self._options.timeout)
        try:
            if self.state is SessionState.BROKEN or EngineState.TORN in self.engine_states.values():
                self._recover(deadline)
            manifest = self._checked_manifest()
            if self._channel is None or manifest.digest != self._channel.digest:
                self._reopen(manifest, deadline)
            return self._plan(version, pause, cache, manifest, number)
        except WeightwireError as error:
            self._agreement.say(f"round-{number}/go", Word(error=error.message, hint=error.hint))
            error.at(phase="preflight", rank=0)
            raise

    def _reopen(self, manifest: Manifest, deadline: Deadline) -> None:
        self._lifecycle.close_channel(deadline)
        self._become(SessionState.BROKEN)
        self._open_channel(manifest, deadline)

    def _plan(
        self, version: str, pause: PauseMode, cache: CachePolicy, manifest: Manifest, number: int
    ) -> TransferPlan:
        if self._channel is None:
            raise StateError("There is no open channel.", hint="call session.recover()")
        return TransferPlan(
            round_id=f"{self._name}-{number}",
            version=version,
            manifest=manifest,
            windows=planning.windows(manifest, self._channel.geometry, infos=self._infos),
            geometry=self._channel.geometry,
            mode=self._channel.mode,
            pause=pause,
            cache=cache,
        )

    def _lead(self, plan: TransferPlan, step: str, *, wait: bool) -> Receipt:
        reserve = min(CLEAN_UP_SECONDS, CLEAN_UP_SHARE * self._options.timeout)
        deadline = Deadline.after(self._options.timeout - reserve)
        whole = Deadline.after(self._options.timeout)
        work = Round(self._lifecycle, plan, self._source, self._tell_phase)
        self._become(SessionState.UPDATING)
        try:
            self._agreement.all_here(f"{step}/ready", deadline)
            work.open(deadline)
            self._agreement.say(f"{step}/go", Word())
            work.transfer(deadline)
        except BaseException as error:
            raise self._failed(work, step, error, whole) from error
        self._tail = Call(lambda: self._close_round(work, step, deadline, whole), doing="committing the update")
        if not wait:
            return work.receipt((), committed=False)
        receipt = self._collect_tail()
        if receipt is None:
            raise StateError("The end of the round was collected by someone else.")
        return receipt

    def _close_round(self, work: Round, step: str, deadline: Deadline, whole: Deadline) -> Receipt:
        try:
            work.close(deadline)
        except BaseException as error:
            raise self._failed(work, step, error, whole) from error
        self._agreement.say(f"{step}/end", Word())
        self._expected = self._expected or expected.from_manifest(work.plan.manifest)
        self._become(SessionState.READY)
        return work.receipt(tuple(self.engine_states), committed=True)

    def _collect_tail(self) -> Receipt | None:
        tail, self._tail = self._tail, None
        return tail.result(Deadline.after(self._options.timeout)) if tail is not None else None

    def _failed(self, work: Round, step: str, error: BaseException, deadline: Deadline) -> BaseException:
        """Clean up, settle the states, tell the other ranks, and make the error to raise."""
        states = self._abort(work, error, deadline)
        broken = isinstance(self._backend, SenderBackend) and not self._backend.channel_open
        self._become(SessionState.BROKEN if broken else SessionState.READY)
        failed = _update_failed(work, error, states)
        word = Word(error=failed.message, hint=failed.hint, engines=failed.engine_states)
        self._agreement.say(f"{step}/go", word)
        self._agreement.say(f"{step}/end", word)
        # Ctrl-C and its kin stay what they are; the engines are settled all the same.
        return failed if isinstance(error, Exception) else error

    def _abort(self, work: Round, error: BaseException, deadline: Deadline) -> dict[str, EngineState]:
        try:
            states = self._lifecycle.abort_update(work.plan, error, deadline)
            self._lifecycle.resume(deadline)
        except Exception as worse:  # noqa: BLE001 - the first error is the one to raise
            error.add_note(f"and cleaning up failed too: {worse}")
            return self.engine_states
        return states

    # The other ranks' part.

    def _follow(self, version: str, step: str) -> Receipt:
        deadline = Deadline.after(self._options.timeout)
        self._agreement.here(f"{step}/ready")
        self._agreement.hear(f"{step}/go", deadline)
        plan = self._followers_plan(version, step)
        self._become(SessionState.UPDATING)
        try:
            stats = self._lifecycle.transfer(plan, self._source, deadline)
            word = self._agreement.hear(f"{step}/end", deadline)
        finally:
            self._become(SessionState.READY)
        return Receipt(
            version=version,
            round_id=step,
            committed=True,
            phases={"transfer": stats.gather},
            stats=stats,
            engines=tuple(word.engines),
        )

    def _followers_plan(self, version: str, step: str) -> TransferPlan:
        manifest = self._source.manifest()
        channel = self._lifecycle.open_channel((), manifest, Deadline.after(self._options.timeout))
        windows = (Window(0, 0, len(manifest.tensors)),)
        return TransferPlan(
            round_id=step, version=version, manifest=manifest, windows=windows, geometry=channel.geometry
        )

    # Both.

    def _refuse_closed(self) -> None:
        if self.state is SessionState.CLOSED:
            raise StateError("The session is closed.", hint="open a new one with weightwire.connect()")

    def _become(self, to: SessionState) -> None:
        self.state = advance(self.state, to)
        self._lifecycle.state_changed(StateChange(session=to, engines=self.engine_states))

    def _tell_phase(self, phase: str, seconds: float, error: str) -> None:
        change = StateChange(session=self.state, engines=self.engine_states, phase=phase, seconds=seconds, error=error)
        self._lifecycle.state_changed(change)


def _update_failed(work: Round, error: BaseException, states: dict[str, EngineState]) -> UpdateFailed:
    held = ", ".join(f"{url} is {state}" for url, state in states.items())
    known = error if isinstance(error, WeightwireError) else None
    failed = UpdateFailed(
        f"The update to version {work.plan.version!r} failed in the phase {work.phase or 'ready'!r}: "
        f"{known.message if known else f'{type(error).__name__}: {error}'} Afterwards {held}.",
        hint=_what_now(states, known),
        server_text=known.server_text if known else "",
        where=known.where if known else None,
    ).at(phase=work.phase, rank=0)
    failed.engine_states = dict(states)
    return failed


def _what_now(states: dict[str, EngineState], known: WeightwireError | None) -> str:
    if EngineState.LOST in states.values():
        return "restart the servers that are lost; the next push brings them the weights"
    if EngineState.TORN in states.values():
        return "mend the cause and push again: torn engines stay paused until a full push succeeds"
    return known.hint if known else "mend the cause and push again; the engines serve what they served"
