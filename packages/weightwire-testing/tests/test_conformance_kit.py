"""The kit itself: its rules, its reports, and that it finds what is broken."""

from __future__ import annotations

import io
import subprocess
import sys

import msgspec
import pytest
import torch
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import ChannelError, ControlError, EngineRefused, SourceFailed
from weightwire.http import Http
from weightwire.messages import CachePolicy, Manifest, PauseMode, TensorMeta
from weightwire.options import Options
from weightwire.planes import SingleRank
from weightwire_testing.conformance import (
    ControlPlaneSuite,
    DataPlaneSuite,
    OnReferenceEngine,
    Outcome,
    Report,
    Result,
    Suite,
    WeightSourceSuite,
    requires,
    run,
)
from weightwire_testing.conformance.checks import expect_raises, within
from weightwire_testing.conformance.receiver_process import serve
from weightwire_testing.conformance.receiving import Answer, Leave, Receive, answers, receivers
from weightwire_torch.gloo_plane import GlooPlane
from weightwire_vllm.control import VllmControl

GLOO = "weightwire_testing.conformance.gloo_receiver:join"


class Small(Suite):
    subject = "number"
    offers = {"even": "it is divisible by two"}  # noqa: RUF012 - a suite's table
    number = 3

    def test_it_is_positive(self):
        assert self.number > 0

    @requires("even")
    def test_it_is_even(self):
        assert self.number % 2 == 0, f"{self.number} is odd"


class Three(Small):
    number = 3


class MinusFour(Small):
    number = -4
    capabilities = frozenset({"even"})
    xfails = {"test_it_is_positive": "negative numbers are not supported yet"}  # noqa: RUF012 - likewise


class MinusThree(Small):
    number = -3
    capabilities = frozenset({"even"})


class FourButSaidToFail(MinusFour):
    number = 4


def outcomes(report: Report) -> list[Outcome]:
    return [result.outcome for result in report.results]


def test_what_is_not_claimed_is_not_run_and_the_report_says_so() -> None:
    report = run(Three)
    assert outcomes(report) == [Outcome.PASSED, Outcome.UNCLAIMED]
    assert report.passed
    assert str(report) == "Three (number): 1 passed, 1 not claimed\n  not claimed: test_it_is_even: even"


def test_an_expected_failure_passes_with_its_reason() -> None:
    report = run(MinusFour)
    assert outcomes(report) == [Outcome.XFAILED, Outcome.PASSED]
    assert report.passed
    assert "failed as expected: test_it_is_positive: negative numbers are not supported yet" in str(report)


def test_a_failure_is_told_in_its_own_words() -> None:
    report = run(MinusThree, "test_it_is_even")
    assert outcomes(report) == [Outcome.FAILED]
    assert not report.passed
    assert "-3 is odd" in str(report)


def test_a_failure_that_is_mended_must_be_struck_from_the_list() -> None:
    report = run(FourButSaidToFail)
    assert outcomes(report) == [Outcome.XPASSED, Outcome.PASSED]
    assert not report.passed


def test_an_empty_report_says_so() -> None:
    assert str(Report("X", "nothing", ())) == "X (nothing): no tests"
    assert Report("X", "nothing", (Result("t", Outcome.PASSED),)).passed


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"test_it_is_even": lambda _self: None}, "overrides the standard test test_it_is_even"),
        ({"capabilities": frozenset({"prime"})}, "claims 'prime'; known capabilities: even"),
        ({"xfails": {"test_it_is_prime": "reason"}}, "'test_it_is_prime' must be a standard test"),
        ({"xfails": {"test_it_is_even": " "}}, "with a reason"),
    ],
)
def test_a_subclass_that_breaks_the_rules_can_not_be_written(members, says) -> None:
    with pytest.raises(TypeError, match=says):
        type("Mine", (Small,), members)


def test_a_subclass_may_have_tests_of_its_own() -> None:
    mine = type("Mine", (Three,), {"test_mine": lambda _self: None})
    assert mine.contract() == ("test_it_is_positive", "test_it_is_even", "test_mine")


def test_pytest_skips_expects_and_reports(tmp_path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "from weightwire_testing.conformance import Suite, requires\n"
        "class Small(Suite):\n"
        "    subject, offers = 'number', {'even': 'e'}\n"
        "    def test_positive(self): assert self.number > 0\n"
        "    @requires('even')\n"
        "    def test_even(self): assert self.number % 2 == 0\n"
        "class TestThree(Small): number = 3\n"
        "class TestMinusFour(Small):\n"
        "    number, capabilities, xfails = -4, frozenset({'even'}), {'test_positive': 'not yet'}\n"
        "class TestFour(Small):\n"
        "    number, capabilities, xfails = 4, frozenset({'even'}), {'test_positive': 'not yet'}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    assert "TestThree (number): 1 passed, 1 not claimed\n  not claimed: test_even: even" in done.stdout
    assert "TestMinusFour (number): 1 passed, 1 failed as expected" in done.stdout
    assert (
        "TestFour (number): 1 passed, 1 passed unexpectedly\n  passed unexpectedly: test_positive: not yet"
        in done.stdout
    )


# Broken planes are found.


class OnGloo(DataPlaneSuite):
    receiver = GLOO
    plane = GlooPlane

    def make_plane(self):
        return self.plane()


def flip(tensor):
    return tensor.clone().view(-1).view(torch.uint8).bitwise_xor(1).view(tensor.dtype).view(tensor.shape)


class FlipsABit(GlooPlane):
    def send(self, plan, window, source, deadline, watch):
        class Flipped:
            def gather(self, group):
                return [flip(tensor) for tensor in source.gather(group)]

        return super().send(plan, window, Flipped(), deadline, watch)


class HidesTheSourcesError(GlooPlane):
    def send(self, plan, window, source, deadline, watch):
        try:
            return super().send(plan, window, source, deadline, watch)
        except SourceFailed as error:
            raise ChannelError("something") from error


class ClosesOnlyOnce(GlooPlane):
    closed = 0

    def close(self, deadline):
        super().close(deadline)
        self.closed += 1
        if self.closed > 2:
            raise ChannelError("closed already")


@pytest.mark.parametrize(
    ("broken", "test", "says"),
    [
        (FlipsABit, "test_tensors_arrive_bit_for_bit", "what arrived"),
        (HidesTheSourcesError, "test_a_source_that_raises_leaves_the_stream_in_step", "expected SourceFailed"),
        (ClosesOnlyOnce, "test_abort_and_close_can_be_said_at_any_time_and_twice", "closed already"),
    ],
)
def test_a_broken_data_plane_fails_the_suite(broken, test, says) -> None:
    report = run(type("Broken", (OnGloo,), {"plane": broken}), test)
    assert outcomes(report) == [Outcome.FAILED]
    assert says in str(report)


class OnVllm(OnReferenceEngine, ControlPlaneSuite):
    control_class = VllmControl

    def make_control(self, url):
        return self.control_class(Http(url, Options()), self.settings.version)

    def make_plane(self):
        return GlooPlane()


class PausesWhenItLooks(VllmControl):
    def probe(self, deadline):
        self.pause(PauseMode.KEEP, CachePolicy.KEEP, deadline)
        return super().probe(deadline)


class TriesTwice(VllmControl):
    def resume(self, deadline):
        try:
            super().resume(deadline)
        except ControlError:
            super().resume(deadline)


class KeepsItToItself(VllmControl):
    def pause(self, mode, cache, deadline):
        try:
            super().pause(mode, cache, deadline)
        except EngineRefused as error:
            raise ControlError("no") from error


class NeverPauses(VllmControl):
    def pause(self, mode, cache, deadline):
        pass


@pytest.mark.parametrize(
    ("broken", "test", "says"),
    [
        (PausesWhenItLooks, "test_probe_tells_what_the_engine_is_and_changes_nothing", "calls that may change"),
        (TriesTwice, "test_a_cut_connection_is_told_and_nothing_is_sent_twice", "resume was sent again"),
        (
            KeepsItToItself,
            "test_a_refusal_is_told_with_its_status_and_the_engines_words",
            "expected EngineRefused",
        ),
        (NeverPauses, "test_a_round_brings_the_new_weights_and_leaves_the_engine_serving", "paused: expected True"),
    ],
)
def test_a_broken_control_plane_fails_the_suite(broken, test, says) -> None:
    report = run(type("Broken", (OnVllm,), {"control_class": broken}), test)
    assert outcomes(report) == [Outcome.FAILED]
    assert says in str(report)


TRAINED = torch.ones(2, requires_grad=True)


class Source:
    """A source of two ones, whose parts a test may spoil."""

    ranks = SingleRank()
    names = ("a", "b")
    groups = ((0, 1), (1, 2))
    tensors = (torch.ones(2), torch.ones(3))

    def manifest(self):
        metas = [TensorMeta(name, "float32", shape) for name, shape in zip(self.names, ((2,), (3,)), strict=True)]
        return Manifest(tuple(metas), self.groups)

    def gather(self, group):
        return self.tensors[group : group + 1]


def on_source(**spoilt: object) -> Report:
    source = type("Spoilt", (Source,), spoilt)
    return run(type("Broken", (WeightSourceSuite,), {"make_source": lambda _self: source()}))


def test_a_sound_source_passes() -> None:
    assert on_source().passed


@pytest.mark.parametrize(
    ("spoilt", "test"),
    [
        ({"names": ("a", "a")}, "test_names_are_unique_and_of_a_checkpoint"),
        ({"names": ("a", "module.b")}, "test_names_are_unique_and_of_a_checkpoint"),
        ({"groups": ((0, 1),)}, "test_groups_cover_the_tensors_in_order"),
        ({"groups": ((0, 1), (1, 1), (1, 2))}, "test_groups_cover_the_tensors_in_order"),
        ({"tensors": (torch.ones(2), torch.ones(4))}, "test_gathered_tensors_are_those_of_the_manifest"),
        ({"tensors": (torch.ones(2), torch.ones(3).half())}, "test_gathered_tensors_are_those_of_the_manifest"),
        ({"tensors": (TRAINED, torch.ones(3))}, "test_gathered_tensors_are_those_of_the_manifest"),
        ({"tensors": ([1.0, 1.0], torch.ones(3))}, "test_gathered_tensors_are_those_of_the_manifest"),
        ({"gather": lambda _self, group: [torch.rand(2 + group)]}, "test_rounds_repeat"),
        ({"ranks": None}, "test_it_is_a_weight_source"),
    ],
)
def test_a_broken_source_fails_the_suite(spoilt, test) -> None:
    failed = [result.test for result in on_source(**spoilt).results if result.outcome is Outcome.FAILED]
    assert test in failed


# Its parts.


def test_a_receiver_that_is_told_nonsense_says_so_and_lives() -> None:
    commands = io.BytesIO(msgspec.json.encode(Receive(())) + b"\n" + msgspec.json.encode(Leave()) + b"\n")
    said = io.BytesIO()
    serve(GLOO, commands=commands, answers=said)
    first, second = (msgspec.json.decode(line, type=Answer) for line in said.getvalue().splitlines())
    assert "told to receive before it joined" in first.error
    assert second == Answer()


def test_a_receivers_error_fails_whoever_waits_for_its_answer() -> None:
    failed = Call(lambda: Answer(error="boom"), doing="x")
    with pytest.raises(AssertionError, match="a receiver failed: boom"):
        answers([failed], Deadline.after(9))


def test_a_receiver_that_was_killed_is_told_nothing_and_replaced() -> None:
    [first] = receivers(GLOO, 1)
    first.kill()
    with pytest.raises(EOFError):
        first.tell(Leave())
    [second] = receivers(GLOO, 1)
    assert second is not first
    assert second.alive


def test_a_check_tells_another_error_from_none() -> None:
    with pytest.raises(AssertionError, match=r"x: expected ValueError, found KeyError\('k'\)"):
        expect_raises(ValueError, lambda: {}["k"], "x")
    with pytest.raises(AssertionError, match="and nothing was raised"):
        expect_raises((ValueError, KeyError), lambda: None, "x")


def test_a_check_of_time_tells_how_long_it_took() -> None:
    with pytest.raises(AssertionError, match=r"x: took .* where -9 s were allowed"), within(-9, "x"):
        pass
