"""Running a suite without pytest."""

from __future__ import annotations

from weightwire_testing.conformance.report import Outcome, Report, Result
from weightwire_testing.conformance.suite import Suite


def run(suite: type[Suite], *tests: str) -> Report:
    """Run *tests* of *suite*, or all of them, and never raise for one that fails.

    >>> report = run(TestMyPlane)  # doctest: +SKIP
    >>> assert report.passed, report  # doctest: +SKIP
    """
    results = tuple(_one(suite, test) for test in tests or suite.contract())
    return Report(suite.__name__, suite.subject, results)


def _one(suite: type[Suite], test: str) -> Result:
    unclaimed = suite.unclaimed(test)
    if unclaimed:
        return Result(test, Outcome.UNCLAIMED, unclaimed)
    error = _failure(suite, test)
    expected = suite.xfails.get(test)
    if expected is not None:
        return Result(test, Outcome.XPASSED if error is None else Outcome.XFAILED, expected)
    return Result(test, Outcome.PASSED) if error is None else Result(test, Outcome.FAILED, repr(error))


def _failure(suite: type[Suite], test: str) -> Exception | None:
    subject = suite()
    try:
        subject.setup_method()
        try:
            getattr(subject, test)()
        finally:
            subject.teardown_method()
    except Exception as error:  # noqa: BLE001 - whatever it raises is the result
        return error
    return None
