"""One round under the sender's lead. Whatever fails, the engines are settled and the other ranks are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from weightwire.aftermath import update_failed, word_of
from weightwire.agreement import Steps, Word
from weightwire.backend import SenderBackend
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import UpdateFailed
from weightwire.gathering import InStep
from weightwire.messages import Receipt, TransferPlan
from weightwire.rounds import Ending, Round
from weightwire.standing import Common
from weightwire.states import SessionState
from weightwire.tracebacks import let_go

CLEAN_UP_SHARE = 0.2
"""The part of a push's time that is kept for cleaning up after a failure, so that the whole still meets its end."""

CLEAN_UP_SECONDS = 10.0
"""And its upper bound."""

SETTLE_SHARE = 0.7
"""The part of the clean-up that engines may take to say what they hold; the rest is for resuming the whole ones."""

GRACE = 1.0
"""Seconds that the last phases may be late before their waiter gives up: they keep to the deadline themselves."""


def working_time(deadline: Deadline) -> Deadline:
    """The part of a push's time in which it may work: what is left then is for cleaning up."""
    reserve = min(CLEAN_UP_SECONDS, CLEAN_UP_SHARE * deadline.seconds)
    return Deadline(deadline.at - reserve, deadline.seconds)


class LedRound:
    """Leads one round."""

    def __init__(
        self, backend: SenderBackend, common: Common, *, plan: TransferPlan, steps: Steps, deadline: Deadline
    ) -> None:
        """Touch nothing yet.

        Args:
            backend: the engines and the channel.
            common: the session's parts.
            plan: what is to be done.
            steps: the round's boundaries.
            deadline: for all of it, cleaning up included.
        """
        self._backend = backend
        self._common = common
        self._plan = plan
        self._steps = steps
        self._whole = deadline
        self._working = working_time(deadline)
        self._source = InStep(common.source, plan.manifest)
        self._work = Round(common.lifecycle, plan, source=self._source, tell=common.standing.ended)
        self._window = 0

    def lead(self, *, preflight: float, digest: str) -> Ending:
        """Everything up to the last byte; the phases after it run beside the caller, out of reach of a Ctrl-C.

        Args:
            preflight: seconds that went by before, with looking, checking and opening.
            digest: of what every rank must be about to gather.

        Raises:
            UpdateFailed: the round failed, and the engines are settled.
        """
        self._common.standing.become(SessionState.UPDATING)
        self._backend.gate = self._gate
        with self._cleaned_up():
            self._work.ran("preflight", seconds=preflight)
            self._steps.hear_all(self._working, digest=digest)
            self._work.open(self._working)
            self._steps.say(Word(cuts=tuple(window.stop for window in self._plan.windows)))
            self._transfer()
            self._steps.hear_all(self._working)
        call = Call(self._close, doing="committing the update")
        early = self._work.receipt((), committed=False)
        return Ending(early, partial(self._closed, call))

    def _closed(self, call: Call[Receipt]) -> Receipt:
        return call.result(Deadline.after(self._whole.remaining() + GRACE))

    def _transfer(self) -> None:
        try:
            self._work.transfer(self._working)
        except Exception:
            self._source.catch_up(self._plan.windows[self._window])
            raise
        finally:
            self._source.release()

    def _gate(self, error: Exception | None, deadline: Deadline) -> None:
        """Between two windows: go on only if every rank can."""
        del error  # what fails here raises here
        self._steps.hear_all(deadline)
        self._steps.say(Word())
        self._window += 1

    def _close(self) -> Receipt:
        with self._cleaned_up():
            self._work.close(self._working)
        engines = self._backend.engines
        self._steps.say(Word(engines={url: str(state) for url, state in engines.states().items()}))
        self._common.standing.become(SessionState.READY)
        return self._work.receipt(tuple(engine.url for engine in engines), committed=True)

    @contextmanager
    def _cleaned_up(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise self._fail(error) from error
        except BaseException as error:
            self._fail(error)
            raise  # Ctrl-C and its kin stay what they are

    def _fail(self, error: BaseException) -> UpdateFailed:
        """Settle the engines, tell the other ranks, and make the error to raise."""
        try:
            self._settle(error)
        except BaseException:  # interrupted once more
            self._backend.drop_channel()
            raise
        finally:
            standing, ready = self._common.standing, self._backend.channel_open
            standing.become(SessionState.READY if ready else SessionState.BROKEN)
            failed = update_failed(self._work, error, engines=self._backend.engines)
            self._steps.say(word_of(failed))
            let_go(error)
        return failed

    def _settle(self, error: BaseException) -> None:
        lifecycle, whole = self._common.lifecycle, self._whole
        settled_by = whole.at_most(SETTLE_SHARE * whole.remaining())
        for clean_up in (
            lambda: lifecycle.abort_update(self._plan, error, settled_by),
            lambda: lifecycle.resume(whole),
        ):
            try:
                clean_up()
            except Exception as worse:  # noqa: BLE001 - the first error is the one to raise
                error.add_note(f"and cleaning up failed too: {worse}")
                let_go(worse)
