"""Spare memory for a staged round, filled on a thread of its own while the engine serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torch import Tensor
from weightwire.calls import Call
from weightwire.deadlines import Deadline

Receive = Callable[[], Iterator[list[tuple[str, Tensor]]]]


@dataclass(slots=True)
class _Round:
    """A round being staged. A round that was given up keeps its own memory until its thread ends."""

    round_id: str
    held: dict[str, Tensor] = field(default_factory=dict)
    last: Call[None] | None = None


class Staging:
    """The staged round of one worker; there is one at a time."""

    def __init__(self) -> None:
        """Nothing is staged."""
        self._round: _Round | None = None

    def stage(self, round_id: str, receive: Receive, *, timeout: float) -> None:
        """Begin to receive a window, behind the windows of this round before it. Returns at once.

        Args:
            round_id: a new one forgets the round before.
            receive: takes the window off the wire.
            timeout: seconds that the windows before it may take.
        """
        if self._round is None or self._round.round_id != round_id:
            self._round = _Round(round_id)
        this = self._round
        before = this.last

        def work() -> None:
            if before is not None:
                before.result(Deadline.after(timeout))
            for weights in receive():
                this.held.update({name: tensor.clone() for name, tensor in weights})

        this.last = Call(work, doing=f"staging round {round_id}")

    def take(self, round_id: str, timeout: float) -> dict[str, Tensor]:
        """What was staged, once all of it has come.

        Raises:
            ValueError: another round, or none, was staged.
            WeightwireError, RuntimeError: receiving failed, or is not done in time.
        """
        this = self._round
        if this is None or this.round_id != round_id or this.last is None:
            raise ValueError(f"round {round_id!r} was not staged here")
        this.last.result(Deadline.after(timeout))
        return this.held

    def forget(self) -> None:
        """Give the round up. Idempotent."""
        self._round = None
