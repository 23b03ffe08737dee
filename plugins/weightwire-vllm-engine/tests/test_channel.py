"""A worker's end of the channel, against the sender's own plane: over real gloo, and over the stand-in for NCCL."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest
import torch
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.engine_wire import EngineInit, EngineUpdate
from weightwire.errors import ChannelError, CompatibilityError, DeadlineExceeded, ManifestError, StateError
from weightwire.messages import (
    ChannelRequest,
    ChannelSpec,
    EngineInfo,
    EngineKind,
    Manifest,
    PackGeometry,
    ReceiverLimits,
    TensorMeta,
    TransferPlan,
    Window,
)
from weightwire.planes import SingleRank
from weightwire.vllm import our_payloads
from weightwire_testing.nccl_stand_in import stand_in
from weightwire_torch.gloo_plane import GlooPlane
from weightwire_torch.nccl_group import Transport
from weightwire_torch.nccl_plane import NcclPlane
from weightwire_torch.ring import Ring
from weightwire_vllm_engine import wire
from weightwire_vllm_engine.channel import Batch, Channel
from weightwire_vllm_engine.plan import Piece, Plan

SECONDS = 10.0
TENSORS = {
    "embed": torch.arange(12, dtype=torch.float32).view(3, 4),
    "scalar": torch.tensor(2.5),
    "half": torch.arange(5, dtype=torch.bfloat16),
    "odd": torch.arange(3, dtype=torch.uint8),
    "head": torch.randn(40, 10, generator=torch.Generator().manual_seed(1)),
}
METAS = tuple(TensorMeta(n, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in TENSORS.items())
ENGINE = EngineInfo(
    url="http://127.0.0.1:8000",
    engine="vllm",
    version="0.32.0",
    dialect="0.28",
    control_plane="vllm",
    backend="weightwire",
    kind=EngineKind.OURS,
    world_size=1,
    limits=ReceiverLimits(),
)
MANIFEST = Manifest(METAS, tuple((i, i + 1) for i in range(len(METAS))))


class Source:
    """The tensors above, one a group."""

    ranks = SingleRank()

    def manifest(self) -> Manifest:
        return MANIFEST

    def gather(self, group: int) -> Sequence[object]:
        return [list(TENSORS.values())[group]]


class Meeting:
    """A sender and one worker, or several, each joining on a thread of its own."""

    def __init__(self, *, packed: bool, workers: int = 1, over: str = "gloo") -> None:
        self.plane = GlooPlane() if over == "gloo" else NcclPlane(lambda _: stand_in())
        self.geometry = PackGeometry(packed=packed, buffer_bytes=100, num_buffers=2)
        deadline = Deadline.after(SECONDS)
        spec = ChannelSpec(
            manifest=MANIFEST, geometry=self.geometry, world_size=1 + workers, engines=(ENGINE,), timeout=SECONDS
        )
        met = self.plane.prepare(spec, deadline)
        body = our_payloads.init(
            ChannelRequest(rendezvous=met, rank_offset=1, geometry=self.geometry, manifest=MANIFEST)
        ).body
        self.init = wire.decode_init(msgspec.json.decode(body)["init_info"])
        joins = [Call(self._joiner(rank), doing="joining") for rank in range(1, 1 + workers)]
        self.plane.join(deadline, lambda: None)
        self.channels = [join.result(deadline) for join in joins]

    def _joiner(self, rank: int) -> Callable[[], Channel]:
        return lambda: Channel.join(self.init, rank, transport=lambda _: stand_in())

    def receive(self, loads: Sequence[Callable[[Batch], object]], start: int, stop: int) -> list[Call[None]]:
        update = update_of(start=start, stop=stop)
        return [
            Call(lambda c=channel, load=load: c.receive(update, load), doing="receiving")
            for channel, load in zip(self.channels, loads, strict=True)
        ]

    def land(self, plan: Plan) -> list[Call[None]]:
        update = update_of()
        return [Call(lambda c=channel: c.land(update, plan), doing="landing") for channel in self.channels]

    def send(self, start: int, stop: int) -> None:
        plan = TransferPlan(
            round_id="r", version="1", manifest=MANIFEST, windows=(Window(0, start, stop),), geometry=self.geometry
        )
        self.plane.send(plan, plan.windows[0], Source(), Deadline.after(SECONDS), lambda: None)

    def close(self) -> None:
        for channel in self.channels:
            channel.close()
        self.plane.abort()


def update_of(**changes: object) -> wire.Update:
    fields = EngineUpdate(action="receive", round_id="r", start=0, stop=len(METAS), digest=MANIFEST.digest)
    return wire.decode_update(msgspec.to_builtins(fields) | changes)


@pytest.fixture
def meet():
    """Makes meetings, and ends them."""
    made: list[Meeting] = []

    def make(*, packed: bool = True, workers: int = 1, over: str = "gloo") -> Meeting:
        made.append(Meeting(packed=packed, workers=workers, over=over))
        return made[-1]

    yield make
    for meeting in made:
        meeting.close()


def held(kept: list[Batch]) -> dict[str, torch.Tensor]:
    return {name: tensor for batch in kept for name, tensor in batch}


@pytest.mark.parametrize("over", ["gloo", "nccl"])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("workers", [1, 2])
def test_every_worker_is_fed_what_was_sent_and_may_keep_it(meet, over, packed, workers):
    meeting = meet(packed=packed, workers=workers, over=over)
    kept: list[list[Batch]] = [[] for _ in range(workers)]
    for start, stop in [(0, 2), (2, 5)]:
        calls = meeting.receive([k.append for k in kept], start, stop)
        meeting.send(start, stop)
        for call in calls:
            call.result(Deadline.after(SECONDS))
    for batches in kept:
        assert list(held(batches)) == list(TENSORS)
        # Compared when all has arrived: a loader that keeps its tensors must not see them overwritten.
        assert all(torch.equal(held(batches)[name], tensor) for name, tensor in TENSORS.items())
        assert len(batches) == (2 if packed else 5)


@pytest.mark.parametrize("over", ["gloo", "nccl"])
@pytest.mark.parametrize("packed", [True, False])
def test_what_has_a_plan_lands_where_that_says_round_after_round(meet, over, packed):
    meeting = meet(packed=packed, over=over)
    places = [torch.zeros_like(tensor) for tensor in TENSORS.values()]
    plan = Plan(tuple((whole(place),) for place in places), ((),) * len(places))
    for _ in range(3):
        for place in places:
            place.zero_()
        (call,) = meeting.land(plan)
        meeting.send(0, len(METAS))
        call.result(Deadline.after(SECONDS))
        assert all(torch.equal(*pair) for pair in zip(places, TENSORS.values(), strict=True))


def whole(place: torch.Tensor) -> Piece:
    return Piece(place, 0, tuple(place.shape), place.stride())


def test_what_was_loaded_is_told_with_its_place_in_the_manifest(meet):
    meeting = meet(packed=False)
    told: list[tuple[int, torch.Tensor]] = []
    (channel,) = meeting.channels
    call = Call(
        lambda: channel.receive(update_of(start=1), list, lambda first, kept: told.append((first, kept[0]))),
        doing="receiving",
    )
    meeting.send(1, len(METAS))
    call.result(Deadline.after(SECONDS))
    assert [first for first, _ in told] == [1, 2, 3, 4]
    assert all(torch.equal(list(TENSORS.values())[first], tensor) for first, tensor in told)


def test_a_loader_that_raises_is_not_called_again_and_the_channel_stays_in_step(meet):
    meeting = meet(packed=False)
    seen: list[str] = []

    def picky(batch: Batch) -> None:
        seen.append(batch[0][0])
        if batch[0][0] == "scalar":
            raise AssertionError

    (call,) = meeting.receive([picky], 0, 5)
    meeting.send(0, 5)
    with pytest.raises(ManifestError, match="loader failed at 'scalar': AssertionError") as caught:
        call.result(Deadline.after(SECONDS))
    assert isinstance(caught.value.__cause__, AssertionError)
    assert seen == ["embed", "scalar"]

    kept: list[Batch] = []
    (again,) = meeting.receive([kept.append], 0, 5)
    meeting.send(0, 5)
    again.result(Deadline.after(SECONDS))
    assert list(held(kept)) == list(TENSORS)


def test_one_worker_whose_loader_raises_does_not_hold_up_the_other(meet):
    meeting = meet(workers=2)
    kept: list[Batch] = []

    def never(batch: Batch) -> None:
        raise KeyError(batch[0][0])

    broken, good = meeting.receive([never, kept.append], 0, 5)
    meeting.send(0, 5)
    good.result(Deadline.after(SECONDS))
    assert list(held(kept)) == list(TENSORS)
    with pytest.raises(ManifestError, match="KeyError: 'embed'"):
        broken.result(Deadline.after(SECONDS))


def test_an_update_that_does_not_fit_is_refused_before_a_byte_is_received(meet):
    meeting = meet()
    (channel,) = meeting.channels
    with pytest.raises(StateError, match="opened for"):
        channel.receive(update_of(digest="feed"), lambda _: None)
    with pytest.raises(ManifestError, match="5 tensors"):
        channel.receive(update_of(stop=6), lambda _: None)


@pytest.mark.parametrize("over", ["gloo", "nccl"])
def test_a_sender_that_goes_away_ends_the_wait_and_the_channel(meet, over):
    meeting = meet(over=over)
    (call,) = meeting.receive([lambda _: None], 0, 5)
    meeting.plane.abort()
    with pytest.raises((ChannelError, DeadlineExceeded)):
        call.result(Deadline.after(SECONDS))
    with pytest.raises(ChannelError, match="not open"):
        meeting.channels[0].receive(update_of(), lambda _: None)


def test_over_nccl_a_sender_that_went_away_is_told_from_one_that_is_late(meet):
    meeting = meet(over="nccl")
    (call,) = meeting.receive([lambda _: None], 0, 5)
    meeting.plane.abort()
    with pytest.raises(ChannelError, match="sender is gone") as caught:
        call.result(Deadline.after(SECONDS))
    assert "pushes all weights" in caught.value.hint


def test_two_releases_of_nccl_are_refused_before_anybody_is_met(meet):
    meeting = meet(over="nccl")
    with pytest.raises(CompatibilityError, match=r"trainer runs NCCL 2\.29\.7 and this worker 2\.28\.9") as caught:
        Channel.join(meeting.init, 1, transport=lambda _: stand_in(version="2.28.9"))
    assert "VLLM_NCCL_SO_PATH" in caught.value.hint


def test_the_library_is_the_one_that_the_server_was_told_to_load(meet, monkeypatch):
    meeting = meet(over="nccl")
    asked: list[str] = []

    def opened(path: str) -> Transport:
        asked.append(path)
        return stand_in(version="2.28.9")

    for variable, value in [("WEIGHTWIRE_NCCL_LIBRARY", "/theirs.so"), ("VLLM_NCCL_SO_PATH", "/vllms.so")]:
        monkeypatch.setenv(variable, value)
        with pytest.raises(CompatibilityError):
            Channel.join(meeting.init, 1, transport=opened)
    assert asked == ["/theirs.so", "/vllms.so"]


def test_no_room_on_the_gpu_is_said_with_what_to_lower(meet, monkeypatch):
    meeting = meet(over="nccl")

    def full(*given: object, **named: object) -> Ring:
        raise torch.OutOfMemoryError("tried to allocate 1 GiB")

    monkeypatch.setattr(Ring, "fitting", full)
    with pytest.raises(ChannelError, match="no room for the packs") as caught:
        Channel.join(meeting.init, 1, transport=lambda _: stand_in())
    assert "bucket_bytes" in caught.value.hint


def test_nobody_at_the_senders_address_is_said_within_the_timeout():
    fields = msgspec.structs.replace(nowhere(), timeout=0.5)
    with pytest.raises(ChannelError, match="can't reach the sender's store"):
        Channel.join(fields, 1)


def nowhere() -> EngineInit:
    """An init that names a port where nobody listens."""
    plane = GlooPlane()
    geometry = PackGeometry(packed=True, buffer_bytes=100, num_buffers=2)
    spec = ChannelSpec(manifest=MANIFEST, geometry=geometry, world_size=2, engines=(), timeout=SECONDS)
    met = plane.prepare(spec, Deadline.after(SECONDS))
    plane.close(Deadline.after(SECONDS))
    return EngineInit(
        wire_version=1,
        transport="gloo",
        address=met.address,
        port=met.port,
        rank_offset=1,
        world_size=2,
        timeout=SECONDS,
        packed=True,
        buffer_bytes=100,
        tensors=METAS,
        digest=MANIFEST.digest,
    )
