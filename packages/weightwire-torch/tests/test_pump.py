"""The pump and the gloo plane, to receivers in processes of their own."""

from __future__ import annotations

import math
import time

import pytest
import torch
from weightwire.deadlines import Deadline
from weightwire.errors import ChannelError, ControlError, DeadlineExceeded, ManifestError, SourceFailed, StateError
from weightwire.messages import ITEM_BYTES, Progress
from weightwire_torch.dtypes import torch_dtype
from weightwire_torch.manifest import manifest_of

RUNS_INTO_GROUPS = 1500
"""A buffer size that makes packs of the small model cross its groups."""


LARGE = 24 * 1024 * 1024
"""Bytes that fit into no socket's buffer."""


@pytest.mark.parametrize("case", [(1, True), (1, False), (2, True), (2, False)])
def test_every_receiver_gets_every_tensor(channel, make_source, layers, digests, case) -> None:
    receivers, packed = case
    source = make_source(layers())
    opened = channel(source.manifest(), packed=packed, buffer_bytes=RUNS_INTO_GROUPS).open(receivers)
    stats = opened.send(source)
    assert [answer.got for answer in opened.answers()] == [digests(source.named)] * receivers
    assert source.gathered == list(range(len(source.manifest().groups)))
    assert stats.nbytes == source.manifest().nbytes
    assert stats.collectives == (10 if not packed else 4)
    assert stats.wire > 0
    assert stats.pack > 0 or not packed


def of_every_dtype() -> list[tuple[str, torch.Tensor]]:
    named = []
    for number, name in enumerate(ITEM_BYTES):
        for shape in [(), (3,), (number + 1, 7)]:  # odd sizes: what follows is misaligned
            noise = torch.randint(0, 2, (math.prod(shape) * ITEM_BYTES[name],), dtype=torch.uint8)
            named.append((f"{name}.{shape}", noise.view(torch_dtype(name)).view(shape)))
    return named


@pytest.mark.parametrize("buffer_bytes", [0, 64, 100_000])
def test_every_dtype_and_every_alignment_arrives_bit_for_bit(channel, make_source, digests, buffer_bytes) -> None:
    source = make_source(of_every_dtype())
    opened = channel(source.manifest(), buffer_bytes=buffer_bytes).open()
    opened.send(source)
    assert opened.answers()[0].got == digests(source.named)


def test_windows_and_rounds_follow_each_other_on_one_channel(channel, make_source, layers, digests) -> None:
    source = make_source(layers())
    opened = channel(source.manifest(), buffer_bytes=RUNS_INTO_GROUPS)
    opened.windows = ((0, 3), (3, 7), (7, 10), (0, 3), (3, 7), (7, 10))
    opened.open()
    opened.send(source)
    assert opened.answers()[0].got == digests(source.named)
    assert source.gathered == [0, 1, 2, 3, 4, 5] * 2


def test_tensors_are_cast_to_what_the_manifest_says(channel, make_source, digests) -> None:
    wide = [("a", torch.randn(5, 3)), ("b", torch.randn(7)), ("big", torch.randn(400))]
    source = make_source(wide)
    source.manifest_ = manifest_of(wide, dtype="bfloat16")
    opened = channel(source.manifest(), buffer_bytes=50).open()
    opened.send(source)
    assert opened.answers()[0].got == digests([(name, tensor.bfloat16()) for name, tensor in wide])


def test_tensors_that_are_not_contiguous_arrive_whole(channel, make_source, digests) -> None:
    source = make_source([("t", torch.randn(40, 30).t()), ("strided", torch.randn(9, 2)[:, 1])])
    for packed in (True, False):
        opened = channel(source.manifest(), packed=packed).open()
        opened.send(source)
        assert opened.answers()[0].got == digests(source.named)
        opened.close()


def test_a_source_may_reuse_its_memory_for_the_next_group(channel, make_source, layers, digests) -> None:
    source = make_source(layers(width=64))
    expected = digests(source.named)
    one = torch.empty(source.manifest().nbytes, dtype=torch.uint8)
    gather = source.gather

    def gather_into_the_same_memory(group: int) -> list[torch.Tensor]:
        out, at = [], 0
        for tensor in gather(group):
            place = one[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            out.append(place.copy_(tensor))
            at += tensor.nbytes
        return out

    source.gather = gather_into_the_same_memory
    for packed in (True, False):
        opened = channel(source.manifest(), packed=packed, buffer_bytes=5000).open()
        opened.send(source)
        assert opened.answers()[0].got == expected
        opened.close()


@pytest.mark.parametrize("lasting", [False, True])
def test_tensors_sent_in_place_arrive_whether_they_last_or_not(channel, make_source, digests, lasting) -> None:
    source = make_source([(f"layers.{i}.w", torch.full((LARGE,), i, dtype=torch.uint8)) for i in range(3)])
    source.lasting = lasting
    opened = channel(source.manifest(), packed=False).open()
    stats = opened.send(source)
    assert opened.answers()[0].got == digests(source.named)
    assert stats.pack == 0.0


def fail() -> None:
    raise ValueError("the disk is gone")


@pytest.mark.parametrize("group", [0, 3, 5], ids=["first", "middle", "last"])
@pytest.mark.parametrize("packed", [True, False])
def test_a_source_that_raises_still_lets_the_receivers_out(channel, make_source, layers, group, packed) -> None:
    source = make_source(layers())
    source.before[group] = fail
    if group < 5:
        source.before[5] = lambda: 1 / 0  # a second error changes nothing
    opened = channel(source.manifest(), packed=packed, buffer_bytes=RUNS_INTO_GROUPS)
    opened.windows = ((0, 10), (0, 10))
    opened.open()
    with pytest.raises(SourceFailed) as caught:
        opened.send(source)
    assert isinstance(caught.value.__cause__, ValueError)
    first = source.manifest().groups[group][0]
    assert f"group {group} ('{source.manifest().names[first]}'" in caught.value.message
    assert "the disk is gone" in caught.value.message
    assert source.gathered == list(range(6))
    source.before.clear()  # the channel is in step: what comes next arrives
    opened.windows = ((0, 10),)
    opened.send(source)
    (answer,) = opened.answers()
    assert answer.error == ""
    assert set(answer.got) == set(source.manifest().names)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t: t[:1], "has the shape (1, 16); the manifest says (16, 16)"),
        (lambda t: t.to(torch.int32), "has the dtype int32; the manifest says float32"),
        (lambda t: t.to(torch.float8_e4m3fn), "has the dtype float8_e4m3fn"),
        (lambda t: t.tolist(), "gave a list"),
    ],
)
def test_a_tensor_that_is_not_what_the_manifest_says_fails_the_source(
    channel, make_source, layers, change, text
) -> None:
    source = make_source(layers())
    opened = channel(source.manifest()).open()
    name, tensor = source.named[3]
    source.named[3] = (name, change(tensor))
    with pytest.raises(SourceFailed) as caught:
        opened.send(source)
    assert isinstance(caught.value.__cause__, ManifestError)
    assert text in caught.value.message
    assert name in caught.value.message
    assert opened.answers()[0].error == ""


def test_a_group_with_a_tensor_too_few_fails_the_source(channel, make_source, layers) -> None:
    source = make_source(layers())
    opened = channel(source.manifest()).open()
    gather = source.gather
    source.gather = lambda group: gather(group)[:1]
    with pytest.raises(SourceFailed, match="1 tensors"):
        opened.send(source)
    assert opened.answers()[0].error == ""


def test_an_interrupt_lets_the_receivers_out_and_goes_on_up(channel, make_source, layers) -> None:
    source = make_source(layers())
    opened = channel(source.manifest()).open()

    def interrupt() -> None:
        raise KeyboardInterrupt

    source.before[2] = interrupt
    with pytest.raises(KeyboardInterrupt):
        opened.send(source)
    assert opened.answers()[0].error == ""


def test_a_gather_that_hangs_does_not_keep_the_receivers_past_the_deadline(channel, make_source, layers) -> None:
    source = make_source(layers())
    opened = channel(source.manifest()).open()
    source.before[2] = opened.answers  # comes back when the receivers have
    with pytest.raises(DeadlineExceeded, match="gathering"):
        opened.send(source, seconds=1.5)
    assert opened.answers()[0].error == ""
    assert source.gathered == list(range(6))


def test_what_the_watch_reports_ends_the_round_after_the_gathers(channel, make_source, layers) -> None:
    source = make_source(layers(width=128))
    opened = channel(source.manifest(), packed=False).open()
    refused = ControlError("the engine said no")
    with pytest.raises(ControlError) as caught:
        opened.send(source, watch=lambda: refused if len(source.gathered) > 2 else None)
    assert caught.value is refused
    assert source.gathered == list(range(6))
    assert "ChannelError" in opened.answers()[0].error  # at once, not after its own timeout
    with pytest.raises(ChannelError):
        opened.send(source)


def test_a_receiver_that_dies_in_mid_stream_ends_the_round_at_once(channel, make_source) -> None:
    source = make_source([(f"layers.{i}.w", torch.zeros(LARGE, dtype=torch.uint8)) for i in range(6)])
    opened = channel(source.manifest(), packed=False).open(2, fate="die", packs=2)
    began = time.monotonic()
    with pytest.raises(ChannelError, match="gloo"):
        opened.send(source)
    assert time.monotonic() - began < 10
    assert source.gathered == list(range(6))
    with pytest.raises(EOFError):
        opened.calls[0].result(Deadline.after(5.0))
    assert "ChannelError" in opened.calls[1].result(Deadline.after(5.0)).error


def test_a_receiver_that_freezes_ends_the_round_at_the_deadline(channel, make_source) -> None:
    source = make_source([(f"layers.{i}.w", torch.zeros(LARGE, dtype=torch.uint8)) for i in range(6)])
    opened = channel(source.manifest(), packed=False).open(1, fate="freeze", packs=1)
    began = time.monotonic()
    try:
        with pytest.raises(DeadlineExceeded):
            opened.send(source, seconds=2.0)
        assert 1.5 < time.monotonic() - began < 5
        assert source.gathered == list(range(6))
    finally:
        opened.receivers[0].kill()


def test_a_window_must_hold_whole_groups(channel, make_source, layers) -> None:
    source = make_source(layers())
    opened = channel(source.manifest())
    opened.open()
    opened.windows = ((0, 2),)
    with pytest.raises(StateError, match="whole groups"):
        opened.send(source)
    assert source.gathered == []


def test_progress_is_told_in_the_end_and_never_goes_back(channel, make_source, layers) -> None:
    source = make_source(layers())
    opened = channel(source.manifest(), packed=False)
    opened.windows = ((0, 3), (3, 10))
    opened.open()
    told: list[Progress] = []
    opened.plane.progress = told.append
    opened.send(source)
    sent = [progress.sent for progress in told]
    assert sent == sorted(sent)
    assert sent.count(source.manifest().nbytes) == 1
    assert {progress.total for progress in told} == {source.manifest().nbytes}


def test_a_progress_sink_that_raises_stops_nobody(channel, make_source, layers, caplog) -> None:
    source = make_source(layers())
    opened = channel(source.manifest()).open()
    opened.plane.progress = lambda _: fail()
    opened.send(source)
    assert opened.answers()[0].error == ""
    assert "progress sink raised" in caplog.text
