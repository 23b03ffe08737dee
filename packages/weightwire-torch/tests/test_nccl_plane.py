"""The NCCL plane, against workers that join as vLLM's do, over the stand-in for NCCL and a GPU."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import torch
from torch._C._distributed_c10d import TCPStore
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import (
    ChannelError,
    CompatibilityError,
    ConfigurationError,
    ControlError,
    DeadlineExceeded,
    SourceFailed,
)
from weightwire.messages import (
    ChannelSpec,
    EngineInfo,
    EngineKind,
    Manifest,
    PackGeometry,
    ReceiverLimits,
    Rendezvous,
    TransferStats,
)
from weightwire.planes import Watch
from weightwire_testing.nccl_stand_in import GlooNccl, stand_in
from weightwire_torch.broadcasting import Guard, all_well
from weightwire_torch.framing import packs, views
from weightwire_torch.lifeline import Tether
from weightwire_torch.nccl_communicator import Communicator, wait_until
from weightwire_torch.nccl_errors import ONE_GPU
from weightwire_torch.nccl_plane import NO_STORE, NcclBroadcaster, NcclPlane
from weightwire_torch.nccl_rendezvous import KEY

SECONDS = 20.0
RUNS_INTO_GROUPS = 1500
"""A buffer size that makes packs of the small model cross its groups."""


def engine(**fields: object) -> EngineInfo:
    known = {
        "url": "http://127.0.0.1:8000",
        "engine": "vllm",
        "version": "0.32.0",
        "dialect": "0.28",
        "control_plane": "vllm",
        "backend": "nccl",
        "kind": EngineKind.STOCK,
        "world_size": 1,
        "limits": ReceiverLimits(),
    }
    return EngineInfo(**(known | fields))


class Worker:
    """A stock worker's way in: the store, the pickled id, NCCL, the warm-up, then one broadcast a pack."""

    def __init__(self, met: Rendezvous, rank: int, channel: OpenChannel) -> None:
        self.met = met
        self.rank = rank
        self.channel = channel
        self.may_receive = threading.Semaphore(channel.packs_received)
        self.call: Call[dict[str, torch.Tensor]] = Call(self._work, doing="receiving")

    def _work(self) -> dict[str, torch.Tensor]:
        transport = stand_in(timeout=SECONDS)
        guard = Guard(Deadline.after(SECONDS), all_well)
        with transport.device.here():
            inside = Communicator.enter(
                transport.nccl, self._unique_id(), rank=self.rank, world_size=self.met.world_size
            )
        inside.settle(guard, "joining")
        one = torch.zeros(1)
        inside.add_up(one.data_ptr(), transport.device.wire)
        inside.settle(guard, "warming up")
        wait_until(transport.device.mark_wire().passed, lambda: guard.check("warming up"))
        got: dict[str, torch.Tensor] = {}
        for start, stop in self.channel.windows:
            for pack in packs(self.channel.manifest.tensors[start:stop], self.channel.geometry):
                if not self.may_receive.acquire(timeout=SECONDS):
                    raise TimeoutError
                buffer = torch.empty(pack.nbytes, dtype=torch.uint8)
                inside.broadcast(buffer.data_ptr(), pack.nbytes, stream=transport.device.wire)
                inside.settle(guard, "receiving")
                wait_until(transport.device.mark_wire().passed, lambda: guard.check("receiving"))
                got |= {meta.name: view for meta, view in zip(pack.tensors, views(buffer, pack), strict=True)}
        inside.close(Deadline.after(1.0))
        return got

    def _unique_id(self) -> bytes:
        if self.met.unique_id:
            return self.met.unique_id
        store = TCPStore(self.met.address, self.met.port, is_master=False, timeout=timedelta(seconds=SECONDS))
        pickled = bytes(store.get(KEY))
        start = pickled.index(b"C\x80") + 2
        return pickled[start : start + 128]


class OpenChannel:
    """A plane and its workers."""

    def __init__(self, manifest: Manifest, geometry: PackGeometry, send_windows: Callable[..., TransferStats]) -> None:
        self._send_windows = send_windows
        self.manifest = manifest
        self.geometry = geometry
        self.windows: tuple[tuple[int, int], ...] = ((0, len(manifest.tensors)),)
        self.packs_received = 10_000
        self.transport = stand_in(timeout=SECONDS)
        self.plane = NcclPlane(self._transport)
        self.workers: list[Worker] = []
        self.engines: tuple[EngineInfo, ...] = (engine(),)
        self.asked: list[str] = []

    @property
    def nccl(self) -> GlooNccl:
        assert isinstance(self.transport.nccl, GlooNccl)
        return self.transport.nccl

    def _transport(self, path: str) -> object:
        self.asked.append(path)
        return self.transport

    def prepare(self, workers: int = 1, **fields: object) -> Rendezvous:
        spec = ChannelSpec(
            manifest=self.manifest,
            geometry=self.geometry,
            world_size=1 + workers,
            engines=self.engines,
            timeout=SECONDS,
            **fields,
        )
        return self.plane.prepare(spec, Deadline.after(SECONDS))

    def open(self, workers: int = 1, **fields: object) -> OpenChannel:
        met = self.prepare(workers, **fields)
        self.workers = [Worker(met, rank, self) for rank in range(1, workers + 1)]
        self.plane.join(Deadline.after(SECONDS), self.failure)
        return self

    def failure(self) -> BaseException | None:
        return next(filter(None, (worker.call.failure() for worker in self.workers)), None)

    def send(self, source: object, *, seconds: float = SECONDS, watch: Watch = lambda: None) -> TransferStats:
        return self._send_windows(self, source, Deadline.after(seconds), watch)

    def received(self) -> list[dict[str, torch.Tensor]]:
        return [worker.call.result(Deadline.after(SECONDS)) for worker in self.workers]


@pytest.fixture
def channel(send_windows) -> Iterator[Callable[..., OpenChannel]]:
    made: list[OpenChannel] = []

    def make(manifest: Manifest, *, packed: bool = True, buffer_bytes: int = RUNS_INTO_GROUPS) -> OpenChannel:
        geometry = PackGeometry(packed=packed, buffer_bytes=buffer_bytes, num_buffers=1)
        made.append(OpenChannel(manifest, geometry, send_windows))
        return made[-1]

    yield make
    for one in made:
        one.plane.close(Deadline.after(2.0))
        one.plane.abort()


def same(got: dict[str, torch.Tensor], named: list[tuple[str, torch.Tensor]]) -> bool:
    return list(got) == [name for name, _ in named] and all(torch.equal(got[name], tensor) for name, tensor in named)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = Deadline.after(SECONDS)
    wait_until(condition, lambda: deadline.check("waiting"))


@pytest.mark.parametrize(("workers", "packed"), [(1, True), (1, False), (2, True), (2, False)])
def test_every_worker_gets_every_tensor(channel, make_source, layers, workers, packed) -> None:
    source = make_source(layers())
    opened = channel(source.manifest(), packed=packed).open(workers)
    stats = opened.send(source)
    assert all(same(got, source.named) for got in opened.received())
    assert stats.nbytes == source.manifest().nbytes
    assert stats.collectives == (10 if not packed else 4)
    assert source.gathered == list(range(len(source.manifest().groups)))


def test_whatever_is_on_the_wire_is_kept_from_the_allocator(channel, make_source, layers) -> None:
    source = make_source(layers())
    opened = channel(source.manifest(), packed=False).open()
    opened.send(source)
    opened.received()
    assert {tensor.data_ptr() for _, tensor in source.named} <= set(opened.transport.device.kept)


def test_rounds_and_windows_follow_each_other(channel, make_source, layers) -> None:
    source = make_source(layers())
    opened = channel(source.manifest())
    opened.windows = ((0, 3), (3, 7), (7, 10)) * 3
    opened.open()
    opened.send(source)
    assert all(same(got, source.named) for got in opened.received())


def test_a_channel_can_be_opened_again_and_again_and_leaves_nothing(channel, make_source, layers) -> None:
    source = make_source(layers(count=1))
    opened = channel(source.manifest())
    before = threading.active_count()
    for _ in range(10):
        opened.open()
        opened.send(source)
        assert all(same(got, source.named) for got in opened.received())
        opened.plane.close(Deadline.after(5.0))
        assert opened.nccl.comms == {}
    gc.collect()
    wait_for(lambda: threading.active_count() < before + 25)  # each worker's stand-in for a stream stays


def test_the_id_can_travel_in_the_call_instead_of_a_store(channel, make_source, layers) -> None:
    source = make_source(layers())
    opened = channel(source.manifest()).open(port=NO_STORE)
    (worker,) = opened.workers
    assert worker.met.port == 0
    assert len(worker.met.unique_id) == 128
    opened.send(source)
    assert all(same(got, source.named) for got in opened.received())


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_workers_meet_the_sender_over_ipv4_and_ipv6(channel, make_source, layers, address) -> None:
    source = make_source(layers())
    opened = channel(source.manifest()).open(address=address)
    assert opened.workers[0].met.address == address
    opened.send(source)
    assert all(same(got, source.named) for got in opened.received())


def test_the_port_that_is_asked_for_is_bound_once_and_free_afterwards(channel, make_source, layers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        opened = channel(make_source(layers()).manifest())
        with pytest.raises(ChannelError, match=f"Can't listen on 127.0.0.1:{port}"):
            opened.prepare(address="127.0.0.1", port=port)
    opened.open(address="127.0.0.1", port=port)
    wait_for(lambda: can_bind(port))  # the store is withdrawn when all have joined


def can_bind(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def test_stock_engines_get_nothing_beside_the_rendezvous(channel, make_source, layers) -> None:
    met = channel(make_source(layers()).manifest()).prepare()
    assert (met.extra, met.unique_id) == ({}, b"")


@pytest.mark.parametrize("way", ["abort", "close"])
def test_ours_are_told_the_id_and_the_release_and_hear_that_the_sender_left(channel, make_source, layers, way) -> None:
    opened = channel(make_source(layers()).manifest())
    opened.engines = (engine(kind=EngineKind.OURS, backend="weightwire"),)
    met = opened.prepare()
    assert met.extra == {"transport": "nccl", "nccl_version": "2.29.7"}
    assert len(met.unique_id) == 128
    tether = Tether.tied_to(met.address, met.port, timeout=SECONDS)
    assert tether.watch() is None
    opened.plane.abort() if way == "abort" else opened.plane.close(Deadline.after(1.0))
    wait_for(lambda: tether.watch() is not None)
    tether.close()


def test_ours_can_do_without_a_port(channel, make_source, layers) -> None:
    opened = channel(make_source(layers()).manifest())
    opened.engines = (engine(kind=EngineKind.OURS, backend="weightwire"),)
    met = opened.prepare(port=NO_STORE)
    assert (met.port, len(met.unique_id)) == (0, 128)


def test_the_library_that_is_asked_for_is_opened(channel, make_source, layers) -> None:
    opened = channel(make_source(layers()).manifest())
    opened.prepare(library="/opt/libnccl.so.2")
    assert opened.asked == ["/opt/libnccl.so.2"]


def test_another_release_of_nccl_is_refused_before_anything_is_opened(channel, make_source, layers) -> None:
    opened = channel(make_source(layers()).manifest())
    opened.engines = (engine(nccl_version="2.28.9"),)
    with pytest.raises(CompatibilityError, match=r"NCCL 2\.28\.9 and this process 2\.29\.7") as caught:
        opened.prepare()
    assert "WEIGHTWIRE_NCCL_LIBRARY" in caught.value.hint
    assert "VLLM_NCCL_SO_PATH" in caught.value.hint
    assert opened.nccl.comms == {}


def test_an_override_of_the_id_is_refused(channel, make_source, layers, monkeypatch) -> None:
    monkeypatch.setenv("NCCL_COMM_ID", "10.0.0.1:4000")
    with pytest.raises(ConfigurationError, match="NCCL_COMM_ID"):
        channel(make_source(layers()).manifest()).prepare()


def test_a_worker_that_never_comes_ends_the_join_at_the_deadline(channel, make_source, layers) -> None:
    opened = channel(make_source(layers()).manifest())
    opened.prepare()
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="1 members to join") as caught:
        opened.plane.join(Deadline.after(0.5), lambda: None)
    assert 0.4 < time.monotonic() - began < 2.0
    assert "NCCL_SOCKET_IFNAME" in caught.value.hint
    assert "2.29.7" in caught.value.hint
    opened.plane.abort()
    wait_for(lambda: not opened.nccl.comms)


def test_a_control_call_that_fails_ends_the_join_at_once(channel, make_source, layers) -> None:
    opened = channel(make_source(layers()).manifest())
    opened.prepare()
    refused = ControlError("the engine said no")
    with pytest.raises(ControlError) as caught:
        opened.plane.join(Deadline.after(SECONDS), lambda: refused)
    assert caught.value is refused


def test_what_nccl_says_of_two_ranks_on_one_gpu_is_explained(channel, make_source, layers) -> None:
    opened = channel(make_source(layers()).manifest())
    opened.prepare()
    opened.nccl.refusal = "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000"
    with pytest.raises(ChannelError, match="Duplicate GPU") as caught:
        opened.plane.join(Deadline.after(SECONDS), lambda: None)
    assert caught.value.hint == ONE_GPU


def test_an_abort_from_another_thread_ends_the_join(channel, make_source, layers) -> None:
    opened = channel(make_source(layers()).manifest())
    opened.prepare()

    def abort_soon() -> None:
        if opened.nccl.comms:
            opened.plane.abort()

    with pytest.raises(ChannelError, match="closed or aborted"):
        opened.plane.join(Deadline.after(SECONDS), abort_soon)
    wait_for(lambda: not opened.nccl.comms)


def test_a_source_that_raises_lets_the_workers_out_and_keeps_the_channel_in_step(channel, make_source, layers) -> None:
    source = make_source(layers())
    opened = channel(source.manifest())
    opened.windows = ((0, 10), (0, 10))
    opened.open()
    source.before[3] = lambda: 1 / 0
    with pytest.raises(SourceFailed):
        opened.send(source)
    source.before.clear()
    opened.windows = ((0, 10),)
    opened.send(source)
    assert all(same(got, source.named) for got in opened.received())


def test_a_control_call_that_fails_in_mid_stream_aborts_and_gathers_the_rest(channel, make_source, layers) -> None:
    source = make_source(layers())
    opened = channel(source.manifest(), packed=False)
    opened.packs_received = 2
    opened.open()
    refused = ControlError("the engine said no")
    began = time.monotonic()
    with pytest.raises(ControlError) as caught:
        opened.send(source, watch=lambda: refused if len(source.gathered) > 1 else None)
    assert caught.value is refused
    assert time.monotonic() - began < 5.0
    assert source.gathered == list(range(6))
    wait_for(lambda: not opened.nccl.comms)
    with pytest.raises(ChannelError):
        opened.send(source)


def test_a_wedged_worker_ends_the_round_at_the_deadline(channel, make_source, layers) -> None:
    source = make_source(layers(width=512))
    opened = channel(source.manifest(), packed=False)
    opened.packs_received = 1
    opened.open()
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        opened.send(source, seconds=1.5)
    assert 1.0 < time.monotonic() - began < 4.0
    assert source.gathered == list(range(6))
    wait_for(lambda: not opened.nccl.comms)


def test_after_a_failure_the_channel_can_be_opened_anew(channel, make_source, layers) -> None:
    source = make_source(layers(width=512))
    opened = channel(source.manifest(), packed=False)
    opened.packs_received = 1
    opened.open()
    with pytest.raises(DeadlineExceeded):
        opened.send(source, seconds=1.0)
    opened.plane.abort()
    opened.packs_received = 10_000
    opened.open()
    opened.send(source)
    assert all(same(got, source.named) for got in opened.received())


def test_a_flight_that_was_aborted_has_not_landed(channel, make_source, layers) -> None:
    source = make_source(layers())
    opened = channel(source.manifest())
    opened.packs_received = 0
    opened.open()
    group = opened.plane._group
    assert group is not None
    sender = NcclBroadcaster(opened.transport, group)
    flight = sender.broadcast(torch.zeros(8_000_000, dtype=torch.uint8), sender.ready(), Deadline.after(SECONDS))
    sender.abort()  # the kernel ends, and the mark behind it is passed
    with pytest.raises(ChannelError, match="closed or aborted"):
        flight.land()


def test_sending_on_no_channel_is_refused_in_words(channel, make_source, layers) -> None:
    source = make_source(layers())
    opened = channel(source.manifest())
    with pytest.raises(ChannelError, match="no open NCCL channel"):
        opened.send(source)
    with pytest.raises(ChannelError, match="no open NCCL channel"):
        opened.plane.join(Deadline.after(1.0), lambda: None)


def test_closing_is_idempotent_and_quick_whatever_the_state(channel, make_source, layers) -> None:
    opened = channel(make_source(layers()).manifest())
    for prepared in (False, True):
        if prepared:
            opened.prepare()
        for _ in range(2):
            opened.plane.close(Deadline.after(5.0))
            opened.plane.abort()
    opened.open()
    opened.plane.close(Deadline.after(5.0))
    assert opened.nccl.comms == {}
