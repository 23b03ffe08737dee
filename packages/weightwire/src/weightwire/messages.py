"""The records that pass between a session, its planes and its observers. Data only; nothing here does I/O."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from weightwire.states import EngineState, SessionState

# ruff: noqa: PLC0414 - so that members can take them from here, where they were, until all know their new room
from weightwire.tensors import ITEM_BYTES as ITEM_BYTES
from weightwire.tensors import Manifest as Manifest
from weightwire.tensors import PackGeometry as PackGeometry
from weightwire.tensors import TensorMeta as TensorMeta
from weightwire.tensors import item_bytes as item_bytes


class PauseMode(StrEnum):
    """What happens to requests in flight while the engine is paused."""

    KEEP = "keep"
    """Frozen, and continued with the new weights."""
    WAIT = "wait"
    """Finished first; the pause waits for them."""
    ABORT = "abort"
    """Ended, with what they have."""


class CachePolicy(StrEnum):
    """What happens to the engine's KV and prefix caches at a pause."""

    RESET = "reset"
    """Dropped: no token is computed from keys and values of older weights."""
    KEEP = "keep"
    """Kept: faster, and a mix of old keys with new weights."""


class EngineKind(StrEnum):
    """Which weight-transfer engine the server runs."""

    STOCK = "stock"
    """vLLM's own."""
    OURS = "ours"
    """The one of the distribution weightwire-vllm-engine."""


class RoundMode(StrEnum):
    """Where the bytes land first."""

    DIRECT = "direct"
    """In the live model: the engine is paused before the first byte."""
    STAGED = "staged"
    """In spare memory, while the engine serves: it is paused for the swap alone."""


class ReceiverLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine's receiver can take; the preflight and the planner keep to it.

    Attributes:
        packed: it understands packs at all (or understands them safely).
        num_buffers: the most packs at once without a race where a module may lie in two of them.
        packed_scalars: it takes 0-dimensional tensors inside a pack.
        aligned_packs: every tensor in a pack must start at a multiple of its own element size.
        whole_modules: each update call must hold whole modules only.
        dtypes: dtypes it takes; empty for all of :data:`ITEM_BYTES`.
    """

    packed: bool = True
    num_buffers: int = 2
    packed_scalars: bool = True
    aligned_packs: bool = True
    whole_modules: bool = False
    dtypes: tuple[str, ...] = ()


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an engine before anything is changed in it.

    Attributes:
        url: its base URL.
        engine: the product, such as ``"vllm"``.
        version: its version, as it reports it.
        dialect: the wire form its control plane speaks, such as ``"0.28"``.
        control_plane: the registered name of the control plane that speaks to it.
        backend: the name of its weight-transfer backend, such as ``"nccl"``; it chooses the data plane.
        kind: stock or ours.
        world_size: how many workers join a channel (TP × PP × DP).
        limits: what its receiver can take.
        paused: whether it is paused.
        state: whole or torn, as far as can be told from outside.
        weight_version: the version it says it holds; None where it can't say.
        staged: whether it can receive while it serves.
        model: the model's id or path on the server; empty where it can't be told.
        dtype: the model's dtype on the server; empty where it can't be told.
        device: what its workers run on, such as ``"cuda"`` or ``"cpu"``; empty where it can't be told.
        tied_head: whether the output head shares the embedding; None where it can't be told.
        nccl_version: the NCCL its workers load, such as ``"2.28.9"``; empty where it can't be told.
        variables: those of its environment variables that a transport reads (``NCCL_*``, ``CUDA_VISIBLE_DEVICES``);
            empty where they can't be told.
        notes: what an operator should know, one sentence each.
    """

    url: str
    engine: str
    version: str
    dialect: str
    control_plane: str
    backend: str
    kind: EngineKind
    world_size: int
    limits: ReceiverLimits
    paused: bool = False
    state: EngineState = EngineState.WHOLE
    weight_version: str | None = None
    staged: bool = False
    model: str = ""
    dtype: str = ""
    device: str = ""
    tied_head: bool | None = None
    nccl_version: str = ""
    variables: dict[str, str] = {}
    notes: tuple[str, ...] = ()


class ChannelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a data plane needs to prepare a channel.

    Attributes:
        manifest: what will travel.
        geometry: how it is put together.
        world_size: members of the group: the sender (rank 0) and every worker of every engine.
        engines: the engines, in the order of their rank offsets.
        address: the address to advertise to the workers; empty to choose one.
        port: the port to listen on; 0 to choose one, -1 to listen nowhere and hand the communicator's id over (NCCL).
        interface: the network interface for the data; empty to choose one.
        timeout: seconds a collective may take.
        library: a transport library to load instead of the default (NCCL); empty for the default.
    """

    manifest: Manifest
    geometry: PackGeometry
    world_size: int
    engines: tuple[EngineInfo, ...]
    address: str = ""
    port: int = 0
    interface: str = ""
    timeout: float = 300.0
    library: str = ""


class Rendezvous(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how the workers meet the sender; the control plane carries it to them.

    Attributes:
        address: a host name or address the workers can reach.
        port: the port of the key-value store there; 0 where none is used.
        world_size: members of the group.
        unique_id: the communicator's id, where the transport has one (NCCL: 128 bytes).
        timeout: seconds the workers should wait.
        extra: fields of the plane's own, put into the init payload as they are.
    """

    address: str
    port: int
    world_size: int
    unique_id: bytes = b""
    timeout: float = 300.0
    extra: dict[str, str | int | float | bool] = {}


class ChannelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's part in opening a channel: its workers take the ranks from *rank_offset* on."""

    rendezvous: Rendezvous
    rank_offset: int
    geometry: PackGeometry
    manifest: Manifest


class ChannelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An open channel.

    Attributes:
        data_plane: its registered name.
        world_size: members of the group, the sender included.
        digest: the digest of the manifest it was opened for.
        geometry: how tensors are put together on it.
        mode: where the bytes land first.
    """

    data_plane: str
    world_size: int
    digest: str
    geometry: PackGeometry
    mode: RoundMode = RoundMode.DIRECT


class Window(msgspec.Struct, frozen=True):
    """The tensors of one update call: the half-open range ``[start, stop)`` of the manifest."""

    index: int
    start: int
    stop: int


class TransferPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is settled about a round before its first byte.

    Attributes:
        round_id: unique to this round; also what a torn engine is marked with.
        version: the weight version it brings, as a string on the wire.
        manifest: what travels.
        windows: the update calls, in order, covering the manifest.
        geometry: how tensors are put together.
        mode: where the bytes land first.
        pause: what happens to requests in flight.
        cache: what happens to caches.
    """

    round_id: str
    version: str
    manifest: Manifest
    windows: tuple[Window, ...]
    geometry: PackGeometry
    mode: RoundMode = RoundMode.DIRECT
    pause: PauseMode = PauseMode.KEEP
    cache: CachePolicy = CachePolicy.RESET


class TransferStats(msgspec.Struct, frozen=True, kw_only=True):
    """What a transfer did on this rank. Times in seconds; *wire* is the sender thread's, the others the caller's."""

    nbytes: int = 0
    collectives: int = 0
    gather: float = 0.0
    pack: float = 0.0
    wire: float = 0.0

    def __add__(self, other: TransferStats) -> TransferStats:
        """The sum, field by field."""
        return TransferStats(
            nbytes=self.nbytes + other.nbytes,
            collectives=self.collectives + other.collectives,
            gather=self.gather + other.gather,
            pack=self.pack + other.pack,
            wire=self.wire + other.wire,
        )


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What a push did.

    Attributes:
        version: the version pushed.
        round_id: the round that brought it.
        committed: False only for ``push(wait=False)``, whose last phases are still under way.
        phases: seconds by phase, in the order in which they ran; ``preflight`` is all that comes before the first one
            that an engine feels.
        stats: what travelled.
        engines: the URLs of the engines that hold the version now.
    """

    version: str
    round_id: str
    committed: bool
    phases: dict[str, float]
    stats: TransferStats
    engines: tuple[str, ...]

    def metrics(self) -> dict[str, float]:
        """A flat dict of floats for a trainer's logger: seconds, bytes and bytes per second."""
        total = sum(self.phases.values())
        flat = {f"weightwire/{name}_s": seconds for name, seconds in self.phases.items()}
        flat["weightwire/total_s"] = total
        flat["weightwire/bytes"] = float(self.stats.nbytes)
        flat["weightwire/bytes_per_s"] = self.stats.nbytes / total if total else 0.0
        return flat


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What was checked after a commit.

    Attributes:
        checked: what was compared, one sentence each; empty where the engine offers nothing to compare.
    """

    checked: tuple[str, ...] = ()


class StateChange(msgspec.Struct, frozen=True, kw_only=True):
    """What an observer is told.

    Attributes:
        session: the session's state after the change.
        engines: the state of each engine, by URL.
        phase: the phase that just ended, such as ``"transfer"``; empty for a mere change of state.
        seconds: how long that phase took.
        version: the version of the round under way; empty outside rounds.
        error: what went wrong, as text; empty where nothing did.
    """

    session: SessionState
    engines: dict[str, EngineState]
    phase: str = ""
    seconds: float = 0.0
    version: str = ""
    error: str = ""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes handed to the wire so far in the round under way, of how many."""

    sent: int
    total: int
