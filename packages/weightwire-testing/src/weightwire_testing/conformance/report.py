"""What came of running a suite."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

import msgspec


class Outcome(StrEnum):
    """What came of one test."""

    PASSED = "passed"
    FAILED = "failed"
    XFAILED = "failed as expected"
    XPASSED = "passed unexpectedly"
    UNCLAIMED = "not claimed"


BAD = frozenset({Outcome.FAILED, Outcome.XPASSED})


class Result(msgspec.Struct, frozen=True):
    """One test: its name, what came of it, and why (an error, a reason, a capability)."""

    test: str
    outcome: Outcome
    why: str = ""


class Report(msgspec.Struct, frozen=True):
    """A suite's results.

    Attributes:
        suite: the name of the subclass.
        subject: what was tested.
        results: in the order in which they ran.
    """

    suite: str
    subject: str
    results: tuple[Result, ...]

    @property
    def passed(self) -> bool:
        """Whether the contract holds: nothing failed that was not said to fail."""
        return not any(result.outcome in BAD for result in self.results)

    def __str__(self) -> str:
        """One line of counts, then one for each test that did not simply pass."""
        counts = Counter(result.outcome for result in self.results)
        summary = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome])
        lines = [f"{self.suite} ({self.subject}): {summary or 'no tests'}"]
        odd = [result for result in self.results if result.outcome is not Outcome.PASSED]
        lines += [f"  {result.outcome}: {result.test}: {result.why}" for result in odd]
        return "\n".join(lines)
