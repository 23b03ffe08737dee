"""One round: its phases, in order, each timed and told to the observers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from weightwire.deadlines import Deadline
from weightwire.errors import WeightwireError
from weightwire.lifecycle import Lifecycle
from weightwire.messages import Receipt, RoundMode, TransferPlan, TransferStats
from weightwire.planes import WeightSource


class Tell(Protocol):
    """Told of a phase that ended."""

    def __call__(self, phase: str, *, seconds: float, error: str) -> None:
        """Take note of its name, how long it took, and what went wrong in it ("" for nothing)."""


@dataclass(frozen=True)
class Ending:
    """A push whose bytes have left.

    Attributes:
        early: what is known of it at that point.
        late: wait for the last phases: what the push did, or what it raises. May be called again after an interrupt.
            Made without a lambda: an error would keep it, as a frame keeps its function, and be kept by it in turn.
    """

    early: Receipt
    late: Callable[[], Receipt]


class Round:
    """Runs the phases of one plan on the sender. Makes no decision about failure: whoever runs it does."""

    def __init__(self, lifecycle: Lifecycle, plan: TransferPlan, *, source: WeightSource, tell: Tell) -> None:
        """Run nothing yet."""
        self.plan = plan
        self.stats = TransferStats()
        self.phases: dict[str, float] = {}
        self.phase = ""
        self._lifecycle = lifecycle
        self._source = source
        self._tell = tell

    def ran(self, phase: str, *, seconds: float, error: str = "") -> None:
        """Take note of a phase, and tell of it."""
        self.phases[phase] = seconds
        self._tell(phase, seconds=seconds, error=error)

    def open(self, deadline: Deadline) -> None:
        """Everything before the first byte."""
        if self.plan.mode is RoundMode.DIRECT:
            self._pause(deadline)
        self._run("begin", lambda: self._lifecycle.begin_update(self.plan, deadline))

    def transfer(self, deadline: Deadline) -> None:
        """The bytes."""

        def move() -> None:
            self.stats = self._lifecycle.transfer(self.plan, self._source, deadline)

        self._run("transfer", move)

    def close(self, deadline: Deadline) -> None:
        """Everything after the last byte."""
        if self.plan.mode is RoundMode.STAGED:
            self._pause(deadline)
        self._run("commit", lambda: self._lifecycle.commit_update(self.plan, self.stats, deadline))
        receipt = self.receipt((), committed=True)
        self._run("verify", lambda: self._lifecycle.verify_update(receipt, deadline))
        self._run("resume", lambda: self._lifecycle.resume(deadline))

    def receipt(self, engines: tuple[str, ...], *, committed: bool) -> Receipt:
        """What was done so far."""
        return Receipt(
            version=self.plan.version,
            round_id=self.plan.round_id,
            committed=committed,
            phases=dict(self.phases),
            stats=self.stats,
            engines=engines,
        )

    def _pause(self, deadline: Deadline) -> None:
        self._run("pause", lambda: self._lifecycle.pause(self.plan.pause, self.plan.cache, deadline))

    def _run(self, phase: str, work: Callable[[], object]) -> None:
        self.phase = phase
        began = time.perf_counter()
        error = ""
        try:
            work()
        except BaseException as raised:
            error = f"{type(raised).__name__}: {raised}"
            if isinstance(raised, WeightwireError):
                raised.at(phase=phase, rank=0)
            raise
        finally:
            self.ran(phase, seconds=time.perf_counter() - began, error=error)
