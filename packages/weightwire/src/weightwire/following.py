"""A session's part on every rank but the sender: it gathers what the sender says, and hears how that came out."""

from __future__ import annotations

import itertools
from itertools import pairwise

from weightwire.agreement import Report, Steps, Word
from weightwire.deadlines import Deadline
from weightwire.errors import UpdateFailed
from weightwire.follower import FollowerBackend
from weightwire.gathering import InStep, agreed_digest
from weightwire.messages import ChannelInfo, EngineInfo, Receipt, TransferPlan, TransferStats, Window
from weightwire.orders import Order
from weightwire.rounds import Ending
from weightwire.standing import Common
from weightwire.states import EngineState, SessionState


class Follower:
    """Follows the sender, boundary by boundary (see :mod:`weightwire.agreement`)."""

    engines: tuple[EngineInfo, ...] = ()
    """Only the sender knows them."""

    def __init__(self, backend: FollowerBackend, common: Common) -> None:
        """Do nothing yet."""
        self._backend = backend
        self._common = common
        self._rounds = itertools.count(1)
        self._channel: ChannelInfo | None = None

    def engine_states(self) -> dict[str, EngineState]:
        """Only the sender knows them."""
        return {}

    def open(self, deadline: Deadline) -> None:
        """Wait for the sender's word.

        Raises:
            UpdateFailed: the sender could not open the session, or says nothing in time.
        """
        self._common.agreement.steps("connect").hear(deadline)
        self._common.standing.become(SessionState.CONNECTED)
        self._channel = self._common.lifecycle.open_channel((), self._common.source.manifest(), deadline)
        self._common.standing.become(SessionState.READY)

    def push(self, order: Order, deadline: Deadline) -> Ending:
        """Gather in step with the sender.

        Raises:
            UpdateFailed: the round failed, on this rank or on another.
        """
        steps = self._common.agreement.steps(f"round-{next(self._rounds)}")
        plan = self._plan(order, steps, deadline)
        self._common.standing.become(SessionState.UPDATING)
        try:
            stats = self._gather(plan, steps, deadline)
        except BaseException:
            self._common.standing.become(SessionState.READY)
            raise
        steps.report(Report())
        return Ending(
            _receipt(plan, stats, None), lambda: _receipt(plan, stats, self._hear_the_end(plan, steps, deadline))
        )

    def add(self, url: str, deadline: Deadline) -> None:
        """Leave it to the sender."""

    def recover(self, deadline: Deadline) -> None:
        """Leave it to the sender."""

    def close(self, deadline: Deadline) -> None:
        """Leave nothing behind."""
        self._common.lifecycle.close_channel(deadline)

    def drop(self) -> None:
        """Hold no connection."""

    def _plan(self, order: Order, steps: Steps, deadline: Deadline) -> TransferPlan:
        """Report for duty, and hear what is to be gathered."""
        try:
            manifest = self._common.source.manifest()
        except BaseException as error:
            steps.report(Report(error=f"{type(error).__name__}: {error}"))
            raise
        steps.report(Report(digest=agreed_digest(self._common.source, manifest)))
        cuts = (0, *steps.hear(deadline).cuts)
        channel = self._channel or self._common.lifecycle.open_channel((), manifest, deadline)
        return TransferPlan(
            round_id="",
            version=order.version,
            manifest=manifest,
            windows=tuple(Window(index, start, stop) for index, (start, stop) in enumerate(pairwise(cuts))),
            geometry=channel.geometry,
        )

    def _gather(self, plan: TransferPlan, steps: Steps, deadline: Deadline) -> TransferStats:
        walk = _Walk(plan, steps, InStep(self._common.source, plan.manifest))
        self._backend.gate = walk.gate
        try:
            return self._common.lifecycle.transfer(plan, walk.source, deadline)
        except BaseException as error:
            self._common.lifecycle.abort_update(plan, error, deadline)
            walk.leave(error, deadline)
            raise
        finally:
            walk.source.release()

    def _hear_the_end(self, plan: TransferPlan, steps: Steps, deadline: Deadline) -> Word:
        try:
            return steps.hear(deadline)
        except UpdateFailed as error:
            self._common.lifecycle.abort_update(plan, error, deadline)
            raise
        finally:
            self._common.standing.become(SessionState.READY)


class _Walk:
    """One rank's way through the windows of a round."""

    def __init__(self, plan: TransferPlan, steps: Steps, source: InStep) -> None:
        self.source = source
        self._plan = plan
        self._steps = steps
        self._window = 0
        self._told_off = False

    def gate(self, error: Exception | None, deadline: Deadline) -> None:
        """Between two windows: report, and go on only if the sender says so."""
        self._steps.report(Report(error=_text(error)))
        try:
            self._steps.hear(deadline)
        except BaseException:
            self._told_off = True
            raise
        self._window += 1

    def leave(self, error: BaseException, deadline: Deadline) -> None:
        """Report what this rank met, unless the sender has called the round off already.

        Raises:
            UpdateFailed: what the sender makes of it.
        """
        if self._told_off:
            return
        if isinstance(error, Exception):
            self.source.catch_up(self._plan.windows[self._window])
        self._steps.report(Report(error=_text(error)))
        if isinstance(error, Exception):
            try:
                self._steps.hear(deadline)
            except UpdateFailed as failed:
                raise failed from error


def _text(error: BaseException | None) -> str:
    return "" if error is None else f"{type(error).__name__}: {error}"


def _receipt(plan: TransferPlan, stats: TransferStats, end: Word | None) -> Receipt:
    return Receipt(
        version=plan.version,
        round_id=plan.round_id,
        committed=end is not None,
        phases={"transfer": stats.gather},
        stats=stats,
        engines=tuple(end.engines) if end is not None else (),
    )
