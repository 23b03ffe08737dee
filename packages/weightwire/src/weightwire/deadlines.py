"""Deadlines: every wait has one, and it is passed down, never renewed on the way."""

from __future__ import annotations

import time
from dataclasses import dataclass

from weightwire.errors import DeadlineExceeded


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in time that a chain of calls must meet together.

    Attributes:
        at: when it is over, in seconds of ``time.monotonic()``.
        seconds: how long it was when it was made; only for messages.
    """

    at: float
    seconds: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Make a deadline *seconds* from now."""
        return cls(time.monotonic() + seconds, seconds)

    @property
    def expired(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self.at

    def remaining(self) -> float:
        """Seconds left; 0.0 when it is over, never negative."""
        return max(0.0, self.at - time.monotonic())

    def at_most(self, seconds: float) -> Deadline:
        """The earlier of this deadline and *seconds* from now."""
        other = Deadline.after(seconds)
        return other if other.at < self.at else self

    def check(self, doing: str) -> None:
        """Raise when the time is over.

        Args:
            doing: what was being done, as it should read after "while".

        Raises:
            DeadlineExceeded: the time is over.
        """
        if self.expired:
            raise self.exceeded(doing)

    def exceeded(self, doing: str) -> DeadlineExceeded:
        """The error to raise when this deadline ran out while *doing*."""
        return DeadlineExceeded(
            f"The deadline of {self.seconds:g} s passed while {doing}.",
            hint="If the transfer is only slow, raise the option `timeout`.",
        )
