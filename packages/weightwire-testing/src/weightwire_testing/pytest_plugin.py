"""The pytest plugin: fixtures for the reference engine, and what makes the conformance kit's classes run.

Imported at the start of every pytest run in an environment that has this distribution, so nothing heavy is imported
here: whether there are suites of the kit is asked of ``sys.modules``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from weightwire_testing.reference.launcher import ReferenceEngine
from weightwire_testing.reference.pool import EnginePool
from weightwire_testing.reference.settings import EngineSettings

if TYPE_CHECKING:
    from weightwire_testing.conformance.report import Outcome, Result
    from weightwire_testing.conformance.suite import Suite

MakeEngine = Callable[..., ReferenceEngine]
"""The fixture :func:`reference_engine`: called with an :class:`EngineSettings`, or without for the defaults."""


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a small, untied Llama with fixed weights (seed 1)."""
    from weightwire_testing.model import TinyLlama, save_checkpoint  # noqa: PLC0415 - torch

    return save_checkpoint(TinyLlama(seed=1), tmp_path_factory.mktemp("tiny") / "checkpoint")


@pytest.fixture(scope="session")
def engine_pool() -> Iterator[EnginePool]:
    """Reference engines that later tests use again."""
    pool = EnginePool()
    yield pool
    pool.close()


@pytest.fixture
def reference_engine(engine_pool: EnginePool, tiny_checkpoint: Path) -> Iterator[MakeEngine]:
    """Makes reference engines, each as fresh as from its start; given back when the test ends.

    ``reference_engine()``, or ``reference_engine(EngineSettings(version="0.28.0", workers=2))``. Without a checkpoint
    in the settings it serves ``tiny_checkpoint``.
    """
    lent: list[ReferenceEngine] = []

    def make(settings: EngineSettings | None = None) -> ReferenceEngine:
        wanted = settings or EngineSettings()
        if not wanted.checkpoint:
            wanted = msgspec.structs.replace(wanted, checkpoint=str(tiny_checkpoint))
        lent.append(engine_pool.lend(wanted))
        return lent[-1]

    yield make
    for engine in lent:
        engine_pool.give_back(engine)


_RESULTS: pytest.StashKey[dict[type[Suite], list[Result]]] = pytest.StashKey()


def _suite(item: pytest.Item) -> type[Suite] | None:
    """The suite of the kit that *item* is a test of."""
    kit = sys.modules.get("weightwire_testing.conformance.suite")
    cls: object = getattr(item, "cls", None)
    return cls if kit is not None and isinstance(cls, type) and issubclass(cls, kit.Suite) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what a suite does not claim; expect what it says will fail."""
    for item in items:
        suite, name = _suite(item), getattr(item, "originalname", item.name)
        if suite is None or name not in suite.contract():
            continue
        unclaimed = suite.unclaimed(name)
        if unclaimed:
            item.add_marker(pytest.mark.skip(reason=f"not claimed: {unclaimed}"))
        elif name in suite.xfails:
            item.add_marker(pytest.mark.xfail(reason=suite.xfails[name], strict=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep what came of each standard test."""
    report = yield
    suite = _suite(item)
    if suite is not None and (call.when == "call" or report.outcome != "passed"):
        results = item.config.stash.setdefault(_RESULTS, {}).setdefault(suite, [])
        results.append(_result(report, item, str(call.excinfo.value) if call.excinfo else ""))
    return report


def _result(report: pytest.TestReport, item: pytest.Item, error: str) -> Result:
    from weightwire_testing.conformance.report import Result  # noqa: PLC0415 - the kit is imported by now

    marks = (item.get_closest_marker("skip"), item.get_closest_marker("xfail"))
    reason = next((str(mark.kwargs.get("reason", "")) for mark in marks if mark is not None), "")
    return Result(item.name, _outcome(report), reason.removeprefix("not claimed: ") or error)


def _outcome(report: pytest.TestReport) -> Outcome:
    from weightwire_testing.conformance.report import Outcome  # noqa: PLC0415 - likewise

    expected = hasattr(report, "wasxfail")
    if report.skipped:
        return Outcome.XFAILED if expected else Outcome.UNCLAIMED
    if report.passed:
        return Outcome.PASSED
    return Outcome.XPASSED if "[XPASS(strict)]" in str(report.longrepr) else Outcome.FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Report suite by suite."""
    suites = config.stash.get(_RESULTS, {})
    if not suites:
        return
    from weightwire_testing.conformance.report import Report  # noqa: PLC0415 - likewise

    terminalreporter.section("weightwire conformance")
    for suite, results in suites.items():
        terminalreporter.line(str(Report(suite.__name__, suite.subject, tuple(results))))
