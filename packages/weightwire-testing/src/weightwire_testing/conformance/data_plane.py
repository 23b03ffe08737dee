"""The contract of :class:`weightwire.planes.DataPlane`, as tests.

::

    class TestMyPlane(DataPlaneSuite):
        receiver = "my_plane.testing:join"       # (Job) -> Receiver, in processes of its own
        capabilities = frozenset({"packed"})

        def make_plane(self):
            return MyPlane()
"""

from __future__ import annotations

import threading
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import ChannelError, ControlError, DeadlineExceeded, EngineRefused, SourceFailed
from weightwire.messages import Progress
from weightwire.planes import DataPlane, ReportsProgress

from weightwire_testing.conformance import tensors as samples
from weightwire_testing.conformance.channel import SECONDS, Channel, all_well, spec
from weightwire_testing.conformance.checks import GRACE, expect, expect_raises, expect_true, within
from weightwire_testing.conformance.receiving import answers, receivers
from weightwire_testing.conformance.suite import Suite, requires
from weightwire_testing.conformance.tensors import TensorSource

_RECEIVERS = 2
_BRIEF = 1.0
_BROKEN = (ChannelError, DeadlineExceeded)
_MUCH = 48 * 1024 * 1024
"""More bytes than the sockets between sender and receiver hold, so that a send really waits."""


class DataPlaneSuite(Suite):
    """Run it over a plane and its receiver.

    Attributes:
        receiver: import string of the receiver's function (:mod:`weightwire_testing.conformance.receiving`).
    """

    subject = "data plane"
    offers: ClassVar[dict[str, str]] = {
        "packed": "several tensors travel in one collective, by vLLM's pack rule",
        "unaligned": "a tensor may begin anywhere in a pack",
        "scalars": "a tensor without dimensions may travel",
        "all_dtypes": "every dtype that the wire can name may travel",
        "progress": "it reports progress (planes.ReportsProgress)",
    }
    receiver: ClassVar[str] = ""

    def make_plane(self) -> DataPlane:
        """A plane, fresh. To be overridden."""
        raise NotImplementedError

    def setup_method(self) -> None:
        """Have receivers at hand; they are used again by later tests."""
        self._channels: list[Channel] = []
        self._receivers = receivers(self.receiver, _RECEIVERS)

    def teardown_method(self) -> None:
        """Close what the test left open."""
        for channel in self._channels:
            channel.plane.abort()
            channel.close()

    def open(self, sent: dict[str, Tensor], *, packed: bool = False, timeout: float = SECONDS) -> Channel:
        """Open a channel for *sent* with every receiver in it."""
        described = spec(TensorSource(sent), _RECEIVERS, packed=packed, timeout=timeout)
        self._channels.append(Channel.open(self.make_plane(), described, self._receivers))
        return self._channels[-1]

    # Opening.

    def test_prepare_says_where_and_waits_for_nobody(self) -> None:
        """``prepare`` returns at once with the size of the group and a place to meet."""
        plane = self.make_plane()
        with within(_BRIEF, "prepare without peers"):
            meeting = plane.prepare(spec(TensorSource(samples.odd_shapes(1)), 3, packed=False), Deadline.after(SECONDS))
        expect(meeting.world_size, 4, "members of the group")
        expect_true(meeting.unique_id or (meeting.address and meeting.port), "a place to meet")
        plane.close(Deadline.after(SECONDS))

    def test_a_peer_that_does_not_come_is_late(self) -> None:
        """``join`` meets its deadline."""
        plane = self.make_plane()
        plane.prepare(spec(TensorSource(samples.odd_shapes(1)), 1, packed=False), Deadline.after(SECONDS))
        with within(_BRIEF, "join without a peer"):
            expect_raises(DeadlineExceeded, lambda: plane.join(Deadline.after(_BRIEF), all_well), "join")
        plane.abort()

    def test_a_call_that_fails_ends_joining_at_once(self) -> None:
        """``join`` raises what its watch reports, long before the deadline."""
        plane, refused = self.make_plane(), EngineRefused("no")
        plane.prepare(spec(TensorSource(samples.odd_shapes(1)), 1, packed=False), Deadline.after(SECONDS))
        with within(_BRIEF, "join beside a failed call"):
            raised = expect_raises(ControlError, lambda: plane.join(Deadline.after(SECONDS), lambda: refused), "join")
        expect(raised, refused, "what join raises")
        plane.abort()

    # Sending.

    def test_tensors_arrive_bit_for_bit(self) -> None:
        """Odd shapes of every width reach every receiver."""
        self._arrives(samples.odd_shapes(1), packed=False)

    @requires("packed")
    def test_packed_tensors_arrive_bit_for_bit(self) -> None:
        """The same in packs, tensors larger than a pack included."""
        self._arrives(samples.odd_shapes(1), packed=True)

    @requires("unaligned")
    def test_tensors_at_odd_places_of_a_pack_arrive(self) -> None:
        """A wide dtype behind an odd number of bytes."""
        self._arrives(samples.odd_places(1), packed=True)

    @requires("scalars")
    def test_tensors_without_dimensions_arrive(self) -> None:
        """Alone, and in packs where there are packs."""
        self._arrives(samples.scalars(1), packed="packed" in self.capabilities)

    @requires("all_dtypes")
    def test_every_dtype_arrives(self) -> None:
        """Those that NCCL has no name for, too."""
        self._arrives(samples.more_dtypes(1), packed=False)

    def test_a_window_may_be_a_part_and_rounds_repeat(self) -> None:
        """Several windows make a round, and a channel takes any number of rounds."""
        sent = samples.odd_shapes(1)
        channel = self.open(sent)
        for seed in (1, 2):
            fresh = samples.odd_shapes(seed)
            got, stats = channel.round(TensorSource(fresh), (0, 4), (4, len(sent)))
            expect(got, [samples.digests(fresh)] * _RECEIVERS, f"what arrived in round {seed}")
            expect(stats.nbytes, channel.spec.manifest.nbytes, "bytes in the stats")

    def test_groups_are_gathered_once_in_order_by_the_caller(self) -> None:
        """Other ranks are in the same collectives: no group is skipped, repeated, or gathered on another thread."""
        sent = samples.odd_shapes(1)
        source = TensorSource(sent)
        self.open(sent).round(source, (0, 4), (4, len(sent)))
        expect(source.gathered, list(range(len(source.manifest().groups))), "groups gathered")
        expect(source.threads, {threading.get_ident()}, "threads that gathered")

    @requires("progress")
    def test_progress_grows_to_the_whole(self) -> None:
        """The sink hears of growing numbers, and of all bytes at the end."""
        sent, heard = samples.odd_shapes(1), list[Progress]()
        channel = self.open(sent)
        plane = channel.plane
        expect_true(isinstance(plane, ReportsProgress), "the plane has a `progress`")
        setattr(plane, "progress", heard.append)  # noqa: B010 - the Protocol of DataPlane does not have it
        channel.round(TensorSource(sent))
        counts = [progress.sent for progress in heard]
        expect(counts, sorted(counts), "the order of the reports")
        expect(
            heard[-1],
            Progress(sent=channel.spec.manifest.nbytes, total=channel.spec.manifest.nbytes),
            "the last report",
        )

    # Failing.

    def test_a_source_that_raises_leaves_the_stream_in_step(self) -> None:
        """Receivers get all their tensors (filler), every group is still gathered, and the next round is right."""
        sent = samples.odd_shapes(1)
        channel, source = self.open(sent), TensorSource(sent, fails_at=1)
        plan = channel.plan()
        receiving = channel.receive(plan.windows[0])
        failed = expect_raises(SourceFailed, lambda: channel.send(plan, plan.windows[0], source), "a failing source")
        expect_true(isinstance(failed.__cause__, samples.GatherFailed), "the source's own error is the cause")
        expect(source.gathered, list(range(len(source.manifest().groups))), "groups gathered")
        names = [sorted(answer.digests) for answer in answers(receiving, Deadline.after(SECONDS))]
        expect(names, [sorted(sent)] * _RECEIVERS, "tensors that receivers got")
        fresh = samples.odd_shapes(2)
        expect(channel.round(TensorSource(fresh))[0], [samples.digests(fresh)] * _RECEIVERS, "the round after")

    def test_a_receiver_that_sits_still_is_late(self) -> None:
        """``send`` meets its deadline when nobody receives."""
        sent = {"much": torch.zeros(_MUCH, dtype=torch.uint8)}
        channel, source = self.open(sent), TensorSource(sent)
        plan = channel.plan()
        with within(_BRIEF, "send to receivers that sit still"):
            expect_raises(_BROKEN, lambda: channel.send(plan, plan.windows[0], source, seconds=_BRIEF), "send")
        with within(_BRIEF, "abort after a late send"):
            channel.plane.abort()

    def test_a_call_that_fails_ends_sending_and_still_gathers(self) -> None:
        """``send`` raises what its watch reports, at once; other ranks' gathers still find this one."""
        sent = {f"much.{i}": torch.zeros(_MUCH // 6, dtype=torch.uint8) for i in range(6)}
        channel, source, refused = self.open(sent), TensorSource(sent), EngineRefused("out of memory")
        plan = channel.plan()
        with within(_BRIEF, "send beside a failed call"):
            work = partial(channel.send, plan, plan.windows[0], source, watch=lambda: refused)
            raised = expect_raises(ControlError, work, "send")
        expect(raised, refused, "what send raises")
        expect(source.gathered, list(range(len(source.manifest().groups))), "groups gathered")

    def test_a_receiver_that_is_killed_ends_sending(self) -> None:
        """By an error of the channel or, at the latest, by the deadline."""
        sent = {f"much.{i}": torch.zeros(_MUCH // 6, dtype=torch.uint8) for i in range(6)}
        channel, source = self.open(sent), TensorSource(sent)
        plan = channel.plan()
        channel.receivers[-1].kill()
        with within(3.0, "send to a dead receiver"):
            expect_raises(_BROKEN, lambda: channel.send(plan, plan.windows[0], source, seconds=3.0), "send")

    def test_abort_frees_a_blocked_send_and_never_blocks(self) -> None:
        """``abort`` from another thread returns at once, and the send raises."""
        sent = {"much": torch.zeros(_MUCH, dtype=torch.uint8)}
        channel, source = self.open(sent), TensorSource(sent)
        plan = channel.plan()
        sending = Call(lambda: channel.send(plan, plan.windows[0], source), doing="sending")
        sending.wait(0.3)
        expect_true(not sending.done, "a send that nobody receives waits")
        with within(0.0, "abort"):
            channel.plane.abort()
        expect_raises(ChannelError, lambda: sending.result(Deadline.after(GRACE)), "the send that was aborted")

    # Leaving.

    def test_abort_and_close_can_be_said_at_any_time_and_twice(self) -> None:
        """Before ``prepare``, after it, after joining, and again."""
        plane = self.make_plane()
        for _ in range(2):
            plane.abort()
            plane.close(Deadline.after(SECONDS))
        plane.prepare(spec(TensorSource(samples.odd_shapes(1)), 1, packed=False), Deadline.after(SECONDS))
        plane.close(Deadline.after(SECONDS))
        plane.close(Deadline.after(SECONDS))
        joined = self.open(samples.odd_shapes(1)).plane
        joined.close(Deadline.after(SECONDS))
        joined.abort()
        joined.close(Deadline.after(SECONDS))

    def test_sending_on_a_closed_channel_is_refused(self) -> None:
        """In words, and at once."""
        sent = samples.odd_shapes(1)
        channel, source = self.open(sent), TensorSource(sent)
        plan = channel.plan()
        channel.plane.close(Deadline.after(SECONDS))
        expect_raises(ChannelError, lambda: channel.send(plan, plan.windows[0], source), "send after close")

    def test_a_plane_can_be_opened_again(self) -> None:
        """``prepare`` after an abort makes a new channel, at a new place if need be."""
        sent = samples.odd_shapes(1)
        channel = self.open(sent)
        channel.plane.abort()
        again = Channel.open(channel.plane, channel.spec, self._receivers)
        expect(again.round(TensorSource(sent))[0], [samples.digests(sent)] * _RECEIVERS, "what arrived")

    def _arrives(self, sent: dict[str, Tensor], *, packed: bool) -> None:
        got, stats = self.open(sent, packed=packed).round(TensorSource(sent))
        expect(got, [samples.digests(sent)] * _RECEIVERS, "what arrived")
        expect(stats.nbytes, sum(meta.nbytes for meta in samples.metas(sent)), "bytes in the stats")
        if not packed:
            expect(stats.collectives, len(sent), "collectives in the stats")
