"""A worker's end of the channel, against the sender's own plane, over real gloo on loopback."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest
import torch
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.engine_wire import EngineInit, EngineUpdate
from weightwire.errors import ChannelError, DeadlineExceeded, ManifestError, StateError
from weightwire.messages import ChannelSpec, Manifest, PackGeometry, TensorMeta, TransferPlan, Window
from weightwire.planes import SingleRank
from weightwire_torch.gloo_plane import GlooPlane
from weightwire_vllm_engine import wire
from weightwire_vllm_engine.channel import Batch, Channel

SECONDS = 10.0
TENSORS = {
    "embed": torch.arange(12, dtype=torch.float32).view(3, 4),
    "scalar": torch.tensor(2.5),
    "half": torch.arange(5, dtype=torch.bfloat16),
    "odd": torch.arange(3, dtype=torch.uint8),
    "head": torch.randn(40, 10, generator=torch.Generator().manual_seed(1)),
}
METAS = tuple(TensorMeta(n, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in TENSORS.items())
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

    def __init__(self, *, packed: bool, workers: int = 1) -> None:
        self.plane = GlooPlane()
        self.geometry = PackGeometry(packed=packed, buffer_bytes=100, num_buffers=2)
        deadline = Deadline.after(SECONDS)
        spec = ChannelSpec(
            manifest=MANIFEST, geometry=self.geometry, world_size=1 + workers, engines=(), timeout=SECONDS
        )
        met = self.plane.prepare(spec, deadline)
        fields = EngineInit(
            wire_version=1,
            transport="gloo",
            address=met.address,
            port=met.port,
            rank_offset=1,
            world_size=met.world_size,
            timeout=SECONDS,
            packed=packed,
            buffer_bytes=100,
            tensors=METAS,
            digest=MANIFEST.digest,
        )
        self.init = wire.decode_init(msgspec.to_builtins(fields))
        joins = [Call(self._joiner(rank), doing="joining") for rank in range(1, 1 + workers)]
        self.plane.join(deadline, lambda: None)
        self.channels = [join.result(deadline) for join in joins]

    def _joiner(self, rank: int) -> Callable[[], Channel]:
        return lambda: Channel.join(self.init, rank)

    def receive(self, loads: Sequence[Callable[[Batch], object]], start: int, stop: int) -> list[Call[None]]:
        update = update_of(start=start, stop=stop)
        return [
            Call(lambda c=channel, load=load: c.receive(update, load), doing="receiving")
            for channel, load in zip(self.channels, loads, strict=True)
        ]

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

    def make(*, packed: bool = True, workers: int = 1) -> Meeting:
        made.append(Meeting(packed=packed, workers=workers))
        return made[-1]

    yield make
    for meeting in made:
        meeting.close()


def held(kept: list[Batch]) -> dict[str, torch.Tensor]:
    return {name: tensor for batch in kept for name, tensor in batch}


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("workers", [1, 2])
def test_every_worker_is_fed_what_was_sent_and_may_keep_it(meet, packed, workers):
    meeting = meet(packed=packed, workers=workers)
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


def test_a_sender_that_goes_away_ends_the_wait_and_the_channel(meet):
    meeting = meet()
    (call,) = meeting.receive([lambda _: None], 0, 5)
    meeting.plane.abort()
    with pytest.raises((ChannelError, DeadlineExceeded)):
        call.result(Deadline.after(SECONDS))
    with pytest.raises(ChannelError, match="not open"):
        meeting.channels[0].receive(update_of(), lambda _: None)


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
