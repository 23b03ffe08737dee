"""The contract of :class:`weightwire.planes.ControlPlane`, as tests against a live engine.

::

    class TestMyControl(OnReferenceEngine, ControlPlaneSuite):
        settings = EngineSettings(version="0.32.0")   # or a make_engine() of your own

        def make_control(self, url):
            return MyControl(url)

        def make_plane(self):
            return GlooPlane()                         # one that feeds the engine
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from torch import Tensor
from weightwire import plan as planning
from weightwire.deadlines import Deadline
from weightwire.errors import ControlError, DeadlineExceeded, EngineRefused, EngineUnreachable, GarbledReply, StateError
from weightwire.messages import CachePolicy, ChannelRequest, ChannelSpec, EngineInfo, PauseMode, TransferPlan
from weightwire.options import Options
from weightwire.planes import ControlPlane, DataPlane

from weightwire_testing.conformance.channel import SECONDS
from weightwire_testing.conformance.checks import expect, expect_raises, expect_true, within
from weightwire_testing.conformance.engines import OLD_SEED, LiveEngine
from weightwire_testing.conformance.suite import Suite, requires
from weightwire_testing.conformance.tensors import TensorSource
from weightwire_testing.faults import Phase
from weightwire_testing.model import TinyLlama, fingerprint
from weightwire_testing.reference import Called

_BRIEF = 0.4
_LATE = (DeadlineExceeded, StateError)
"""What may be raised when time runs out; the second says what it means that an engine does not answer."""

Work = Callable[[Deadline], object]


def soon() -> Deadline:
    """A deadline that what works meets."""
    return Deadline.after(SECONDS)


class ControlPlaneSuite(Suite):
    """Run it over a control plane, an engine and a data plane that feeds the engine.

    Attributes:
        phases: the phases of a round that are calls of their own in this wire form.
    """

    subject = "control plane"
    offers: ClassVar[dict[str, str]] = {
        "weight_version": "the engine keeps a weight version",
    }
    phases: ClassVar[tuple[Phase, ...]] = (Phase.PAUSE, Phase.START, Phase.FINISH, Phase.RESUME, Phase.IS_PAUSED)

    def make_engine(self) -> LiveEngine:
        """An engine, fresh. To be overridden; :class:`OnReferenceEngine` does."""
        raise NotImplementedError

    def make_control(self, url: str) -> ControlPlane:
        """A control plane for the engine at *url*. To be overridden."""
        raise NotImplementedError

    def make_plane(self) -> DataPlane:
        """A data plane that feeds the engine. To be overridden."""
        raise NotImplementedError

    def release_engine(self) -> None:
        """Called when a test is done with its engine."""

    def weights(self, seed: int) -> dict[str, Tensor]:
        """Weights for the engine, in checkpoint names; a fresh one serves those of seed 1."""
        return TinyLlama(seed=seed).checkpoint_tensors()

    def setup_method(self) -> None:
        """Start with a fresh engine."""
        self.engine = self.make_engine()
        self.control = self.make_control(self.engine.url)
        self.plane = self.make_plane()

    def teardown_method(self) -> None:
        """Drop the connections."""
        self.plane.abort()
        self.control.close()
        self.release_engine()

    # Looking.

    def test_probe_tells_what_the_engine_is_and_changes_nothing(self) -> None:
        """GETs only, twice the same, and the engine serves on."""
        before = self.engine.fingerprint()
        info = self.control.probe(soon())
        expect(self.control.probe(soon()), info, "a second probe")
        expect([call for call in self.engine.calls() if call.method != "GET"], [], "calls that may change something")
        expect(info.url, self.engine.url, "the URL")
        expect_true(info.world_size >= 1 and info.version and info.backend, f"probe says what it is: {info}")
        expect(info.paused, False, "paused")
        expect(self.engine.fingerprint(), before, "the weights after a probe")

    def test_an_engine_that_is_not_there_is_unreachable(self) -> None:
        """And closing afterwards is no error."""
        control = self.make_control("http://127.0.0.1:9")
        expect_raises(EngineUnreachable, lambda: control.is_paused(soon()), "is_paused of nobody")
        control.close()
        control.close()

    # A round.

    def test_a_round_brings_the_new_weights_and_leaves_the_engine_serving(self) -> None:
        """The whole order: probe, init ‖ join, pause, begin, update ‖ send, finish, resume, close."""
        new = self.weights(2)
        source, info = self._open(new)
        self.control.pause(PauseMode.KEEP, CachePolicy.RESET, soon())
        expect(self.control.is_paused(soon()), True, "paused")
        self._update(source, info, version="7")
        if "weight_version" in self.capabilities:
            expect(self.control.weight_version(soon()), "7", "the version after finish")
        self.control.resume(soon())
        expect(self.control.is_paused(soon()), False, "paused after resume")
        expect(self.engine.fingerprint(), fingerprint(new), "the weights after a round")
        self.control.close_channel(soon())
        self.control.close_channel(soon())

    def test_a_second_round_on_the_same_channel(self) -> None:
        """And back to the old weights."""
        source, info = self._open(self.weights(2))
        for seed in (2, OLD_SEED):
            sent = self.weights(seed)
            self.control.pause(PauseMode.KEEP, CachePolicy.RESET, soon())
            self._update(TensorSource(sent), info, version=str(seed))
            self.control.resume(soon())
            expect(self.engine.fingerprint(), fingerprint(sent), f"the weights of seed {seed}")
        expect(len(source.gathered), 0, "gathers of the source that only described")

    def test_the_long_calls_return_at_once(self) -> None:
        """``init_channel`` and ``update`` are in flight while the sender does its part."""
        source, info = self._open(self.weights(2))
        self.control.pause(PauseMode.KEEP, CachePolicy.RESET, soon())
        plan = self._plan(source, info, "1")
        self.control.begin(plan, soon())
        with within(0.0, "starting an update call"):
            call = self.control.update(plan, plan.windows[0], soon())
        call.wait(0.3)
        expect(call.done, False, "an update whose bytes were not sent is done")
        self.plane.send(plan, plan.windows[0], source, soon(), call.failure)
        call.result(soon())
        self.control.finish(plan, soon())

    def test_pause_and_resume_may_be_said_twice(self) -> None:
        """In every mode and with every cache policy."""
        for mode in PauseMode:
            for policy in CachePolicy:
                self.control.pause(mode, policy, soon())
        expect(self.control.is_paused(soon()), True, "paused")
        for _ in range(2):
            self.control.resume(soon())
        expect(self.control.is_paused(soon()), False, "paused after resume")

    @requires("weight_version")
    def test_a_mark_is_read_back(self) -> None:
        """What is set is what the engine says."""
        expect(self.control.mark("weightwire:conformance", soon()), True, "mark")
        expect(self.control.weight_version(soon()), "weightwire:conformance", "the version after mark")

    def test_an_engine_without_versions_says_so(self) -> None:
        """``mark`` is False and ``weight_version`` None; nothing is pretended."""
        if "weight_version" in self.capabilities:
            return
        expect(self.control.mark("weightwire:conformance", soon()), False, "mark")
        expect(self.control.weight_version(soon()), None, "the version")

    # Recovering.

    def test_an_update_that_a_dead_client_left_open_is_no_obstacle(self) -> None:
        """Begin closes it, or refuses in the engine's words until it was flushed; then a full round works."""
        source, info = self._open(self.weights(2))
        self.control.pause(PauseMode.KEEP, CachePolicy.RESET, soon())
        self.control.begin(self._plan(source, info, "1"), soon())
        self.control.close()
        self.plane.abort()
        self.control = self.make_control(self.engine.url)
        source, info = self._open(self.weights(2))
        try:
            self._update(source, info, version="2")
        except EngineRefused:
            self.control.flush(soon())
            self._update(source, info, version="3")
        self.control.resume(soon())
        expect(self.engine.fingerprint(), fingerprint(self.weights(2)), "the weights after the dead client's update")

    def test_after_a_flush_a_full_round_makes_the_engine_whole(self) -> None:
        """An update that failed in mid-stream, inside a fused layer if there is one."""
        new = self.weights(2)
        source, info = self._open(new)
        self.control.pause(PauseMode.KEEP, CachePolicy.RESET, soon())
        self.engine.set_faults("receive:refuse:after=conformance")
        expect_raises((ControlError,), lambda: self._update(source, info, version="1"), "an update that fails")
        self.engine.set_faults()
        self.plane.abort()
        self.control.flush(soon())
        again, info = self._open(new)
        self._update(again, info, version="2")
        self.control.resume(soon())
        expect(self.engine.fingerprint(), fingerprint(new), "the weights after recovery")

    def test_a_flush_of_a_paused_whole_engine_does_no_harm(self) -> None:
        """The caller may not know whether something is half done."""
        self.control.pause(PauseMode.KEEP, CachePolicy.RESET, soon())
        self.control.flush(soon())
        self.control.resume(soon())
        expect(self.engine.fingerprint(), fingerprint(self.weights(OLD_SEED)), "the weights after a flush")

    # Trouble on the line.

    def test_a_refusal_is_told_with_its_status_and_the_engines_words(self) -> None:
        """In every phase."""
        for phase, work in self._work().items():
            self.engine.set_faults(f"{phase}:refuse=503,words of the engine@*")
            raised = expect_raises(EngineRefused, partial(work, soon()), f"{phase} refused")
            expect(raised.status, 503, f"the status of a refused {phase}")
            expect_true("words of the engine" in raised.server_text, f"{phase} refused without the engine's words")

    def test_garbage_is_told_from_an_answer(self) -> None:
        """A 200 of something else, in every phase."""
        for phase, work in self._work().items():
            self.engine.set_faults(f"{phase}:garbage@*")
            expect_raises(GarbledReply, partial(work, soon()), f"garbage for {phase}")

    def test_a_cut_connection_is_told_and_nothing_is_sent_twice(self) -> None:
        """The call may have been done: it is the caller's to find out."""
        for phase, work in self._work().items():
            self.engine.set_faults(f"{phase}:cut@*")
            sent = len(self._posts())
            expect_raises(EngineUnreachable, partial(work, soon()), f"{phase} cut")
            expect_true(len(self._posts()) <= sent + 1, f"{phase} was sent again after its connection was cut")

    def test_half_a_reply_is_no_reply(self) -> None:
        """In every phase."""
        for phase, work in self._work().items():
            self.engine.set_faults(f"{phase}:truncate@*")
            expect_raises((EngineUnreachable, GarbledReply), partial(work, soon()), f"half a reply for {phase}")

    def test_deadlines_are_met_and_nothing_is_sent_twice(self) -> None:
        """A reply that does not come, and one that comes byte by byte, in every phase."""
        for phase, work in self._work().items():
            for fault in ("stall=60", "trickle=0.5"):
                self.engine.set_faults(f"{phase}:{fault}@*")
                sent = len(self._posts())
                with within(_BRIEF, f"{phase} with {fault}"):
                    expect_raises(_LATE, partial(work, Deadline.after(_BRIEF)), f"{phase} with {fault}")
                expect_true(len(self._posts()) <= sent + 1, f"{phase} was sent again after its deadline")

    def _work(self) -> dict[Phase, Work]:
        """What makes each call, without a channel."""
        control = self.control
        source = TensorSource(self.weights(2))
        plan = self._plan(source, control.probe(soon()), "1")
        every: dict[Phase, Work] = {
            Phase.PAUSE: lambda deadline: control.pause(PauseMode.KEEP, CachePolicy.RESET, deadline),
            Phase.START: lambda deadline: control.begin(plan, deadline),
            Phase.FINISH: lambda deadline: control.finish(plan, deadline),
            Phase.RESUME: control.resume,
            Phase.IS_PAUSED: control.is_paused,
            Phase.UPDATE: lambda deadline: control.update(plan, plan.windows[0], deadline).result(deadline),
        }
        return {phase: every[phase] for phase in self.phases}

    def _posts(self) -> list[Called]:
        return [call for call in self.engine.calls() if call.method == "POST"]

    def _open(self, tensors: dict[str, Tensor]) -> tuple[TensorSource, EngineInfo]:
        """Probe, and bring sender and workers together."""
        source, info = TensorSource(tensors), self.control.probe(soon())
        geometry = planning.geometry(source.manifest(), [info], Options())
        meeting = self.plane.prepare(
            ChannelSpec(
                manifest=source.manifest(),
                geometry=geometry,
                world_size=1 + info.world_size,
                engines=(info,),
                timeout=SECONDS,
            ),
            soon(),
        )
        request = ChannelRequest(rendezvous=meeting, rank_offset=1, geometry=geometry, manifest=source.manifest())
        call = self.control.init_channel(request, soon())
        self.plane.join(soon(), call.failure)
        call.result(soon())
        return source, info

    def _plan(self, source: TensorSource, info: EngineInfo, version: str) -> TransferPlan:
        manifest = source.manifest()
        geometry = planning.geometry(manifest, [info], Options())
        return TransferPlan(
            round_id=f"conformance-{version}",
            version=version,
            manifest=manifest,
            windows=planning.windows(manifest, geometry, infos=[info]),
            geometry=geometry,
        )

    def _update(self, source: TensorSource, info: EngineInfo, *, version: str) -> None:
        """Begin, send every window, finish."""
        plan = self._plan(source, info, version)
        self.control.begin(plan, soon())
        for window in plan.windows:
            call = self.control.update(plan, window, soon())
            self.plane.send(plan, window, source, soon(), call.failure)
            call.result(soon())
        self.control.finish(plan, soon())
