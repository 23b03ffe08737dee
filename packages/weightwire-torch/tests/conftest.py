"""Receivers in real processes, and sources that fail where a test wants."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import pytest
import torch
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.messages import (
    ChannelSpec,
    Manifest,
    PackGeometry,
    TransferPlan,
    TransferStats,
    Window,
)
from weightwire.planes import DataPlane, SingleRank, Watch, WeightSource
from weightwire_torch.gloo_plane import GlooPlane
from weightwire_torch.manifest import manifest_of

SCRIPT = Path(__file__).with_name("receiver_process.py")


class Answer(msgspec.Struct, frozen=True):
    """What a receiver says of its order."""

    got: dict[str, str]
    error: str


class Receiver:
    """One receiver process."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.alive = "ready" in self._line()

    def order(self, order: dict[str, object]) -> Call[Answer]:
        return Call(lambda: self._ask(json.dumps(order)), doing="receiving")

    def kill(self) -> None:
        self.alive = False
        self.process.kill()
        self.process.communicate()

    def _ask(self, line: str) -> Answer:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return msgspec.json.decode(self._line(), type=Answer)

    def _line(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):  # torch up to 2.10 writes there, too, when a gloo group has come together
                return line
        self.alive = False
        raise EOFError("the receiver died")


class Crew:
    """As many receivers as a test asks for; those that died are replaced."""

    def __init__(self) -> None:
        self._members: list[Receiver] = []

    def members(self, count: int) -> list[Receiver]:
        for member in self._members:
            if not member.alive:
                member.kill()  # closes its pipes
        self._members = [member for member in self._members if member.alive]
        while len(self._members) < count:
            self._members.append(Receiver())
        return self._members[:count]

    def dismiss(self) -> None:
        for member in self._members:
            member.kill()


class ListSource:
    """Tensors in the order given, a group a layer; fails where it is told to."""

    def __init__(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        self.ranks = SingleRank()
        self.named = list(named)
        self.gathered: list[int] = []
        self.before: dict[int, Callable[[], object]] = {}
        self.manifest_ = manifest_of(named)

    def manifest(self) -> Manifest:
        return self.manifest_

    def gather(self, group: int) -> Sequence[torch.Tensor]:
        self.gathered.append(group)
        self.before.get(group, lambda: None)()
        start, stop = self.manifest_.groups[group]
        return [tensor for _, tensor in self.named[start:stop]]


class Joined(Protocol):
    """A plane of some kind whose receivers have joined, and the windows of its rounds."""

    plane: DataPlane
    manifest: Manifest
    geometry: PackGeometry
    windows: tuple[tuple[int, int], ...]


def send_windows(channel: Joined, source: WeightSource, deadline: Deadline, watch: Watch) -> TransferStats:
    """A round, window by window."""
    windows = tuple(Window(i, start, stop) for i, (start, stop) in enumerate(channel.windows))
    plan = TransferPlan(
        round_id="r", version="1", manifest=channel.manifest, windows=windows, geometry=channel.geometry
    )
    total = TransferStats()
    for window in windows:
        total += channel.plane.send(plan, window, source, deadline, watch)
    return total


class Channel:
    """A gloo plane and its receivers, joined."""

    def __init__(self, crew: Crew, manifest: Manifest, geometry: PackGeometry) -> None:
        self.plane = GlooPlane()
        self.manifest = manifest
        self.geometry = geometry
        self.crew = crew
        self.timeout = 20.0
        self.receivers: list[Receiver] = []
        self.calls: list[Call[Answer]] = []
        self.windows: tuple[tuple[int, int], ...] = ((0, len(manifest.tensors)),)

    def open(self, count: int = 1, *, fate: str = "live", packs: int = 0) -> Channel:
        spec = ChannelSpec(
            manifest=self.manifest,
            geometry=self.geometry,
            world_size=1 + count,
            engines=(),
            timeout=self.timeout,
        )
        deadline = Deadline.after(self.timeout)
        where = self.plane.prepare(spec, deadline)
        self.receivers = self.crew.members(count)
        for rank, receiver in enumerate(self.receivers, start=1):
            order = {
                "address": where.address,
                "port": where.port,
                "rank": rank,
                "world_size": where.world_size,
                "timeout": where.timeout,
                "tensors": msgspec.to_builtins(self.manifest.tensors),
                "geometry": msgspec.to_builtins(self.geometry),
                "windows": self.windows,
                "fate": fate if rank == 1 else "live",
                "packs": packs,
            }
            self.calls.append(receiver.order(order))
        self.plane.join(deadline, lambda: next(filter(None, (call.failure() for call in self.calls)), None))
        return self

    def send(self, source: ListSource, *, seconds: float = 20.0, watch: Watch = lambda: None) -> TransferStats:
        return send_windows(self, source, Deadline.after(seconds), watch)

    def answers(self) -> list[Answer]:
        return [call.result(Deadline.after(20.0)) for call in self.calls]

    def close(self) -> None:
        self.plane.close(Deadline.after(5.0))


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.dismiss()


@pytest.fixture
def channel(crew: Crew) -> Iterator[Callable[..., Channel]]:
    """Make channels; they are closed when the test ends."""
    made: list[Channel] = []

    def make(manifest: Manifest, *, packed: bool = True, buffer_bytes: int = 1000, num_buffers: int = 2) -> Channel:
        geometry = PackGeometry(packed=packed, buffer_bytes=buffer_bytes, num_buffers=num_buffers)
        made.append(Channel(crew, manifest, geometry))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(name="send_windows")
def send_windows_() -> Callable[..., TransferStats]:
    return send_windows


@pytest.fixture
def make_source() -> type[ListSource]:
    return ListSource


@pytest.fixture
def layers() -> Callable[..., list[tuple[str, torch.Tensor]]]:
    """Named random tensors in the shape of a small model."""

    def make(count: int = 4, width: int = 16, dtype: torch.dtype = torch.float32) -> list[tuple[str, torch.Tensor]]:
        named = [("model.embed_tokens.weight", torch.randn(64, width).to(dtype))]
        for layer in range(count):
            named.append((f"model.layers.{layer}.proj.weight", torch.randn(width, width).to(dtype)))
            named.append((f"model.layers.{layer}.norm.weight", torch.randn(width).to(dtype)))
        named.append(("model.norm.weight", torch.randn(width).to(dtype)))
        return named

    return make


@pytest.fixture
def digests() -> Callable[[Sequence[tuple[str, torch.Tensor]]], dict[str, str]]:
    """What receivers say they got, if they got these tensors."""
    import importlib.util  # noqa: PLC0415 - the script is not a module of any package

    spec = importlib.util.spec_from_file_location("receiver_process", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda named: {name: module.digest(tensor) for name, tensor in named}
