"""POSTs as data, and those that more than one wire form sends. Pure: bytes in, bytes out.

Paths, verbs, keys and answers are compared with the contracts of all releases by
integration_tests/tests/test_contracts.py and its neighbour for the two-call releases.
"""

from __future__ import annotations

import msgspec

from weightwire.errors import CompatibilityError, ManifestError
from weightwire.messages import CachePolicy, ChannelRequest, PauseMode, Rendezvous, TensorMeta, TransferPlan, Window


class Post(msgspec.Struct, frozen=True, kw_only=True):
    """One POST.

    Attributes:
        path: the route.
        answer: a key and its value in the body of a success; with None the key alone. Anything else is no success.
        body: JSON, or None to send none.
        params: the query.
    """

    path: str
    answer: tuple[str, str | bool | None]
    body: bytes | None = None
    params: dict[str, str] = {}


RESUME = Post(path="/resume", answer=("status", "resumed"))
CHECK_HEALTH = Post(path="/collective_rpc", answer=("results", None), body=b'{"method":"check_health"}')
"""A call to every worker that does nothing but come back."""


def pause(mode: PauseMode, cache: CachePolicy) -> Post:
    """Stop generation. Both values are always said: the server's defaults, abort and reset, are rarely meant."""
    return Post(
        path="/pause",
        answer=("status", "paused"),
        params={"mode": mode.value, "clear_cache": "true" if cache is CachePolicy.RESET else "false"},
    )


def init(init_info: msgspec.Struct) -> Post:
    """Tell the workers to join."""
    return Post(
        path="/init_weight_transfer_engine",
        answer=("message", "Weight transfer initialized"),
        body=msgspec.json.encode({"init_info": init_info}),
    )


def update(update_info: msgspec.Struct) -> Post:
    """Tell the workers to receive."""
    return Post(
        path="/update_weights",
        answer=("message", "Weights updated"),
        body=msgspec.json.encode({"update_info": update_info}),
    )


class StoreInit(msgspec.Struct, frozen=True, kw_only=True):
    """``init_info`` of the nccl engine up to 0.27: the workers meet at a store, and nothing is said of packing."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int


def store_init(request: ChannelRequest) -> StoreInit:
    """The part of one engine in a channel, up to 0.27.

    Raises:
        CompatibilityError: the rendezvous brings a unique id instead of a store.
    """
    meeting = needs_store(request.rendezvous)
    return StoreInit(
        master_address=meeting.address,
        master_port=meeting.port,
        rank_offset=request.rank_offset,
        world_size=meeting.world_size,
    )


def needs_store(rendezvous: Rendezvous) -> Rendezvous:
    """Return *rendezvous* if its store is what the workers meet at.

    Raises:
        CompatibilityError: it brings a unique id, which this release can't take.
    """
    if rendezvous.unique_id:
        raise CompatibilityError(
            "The data plane brings a NCCL unique id; vLLM takes one from 0.30 on and needs a store's address before.",
            hint="let the data plane listen on a store, as it does by default",
        )
    return rendezvous


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """The three parallel lists in which vLLM takes tensors: ``update_info`` of the nccl engine from 0.28 on."""

    names: tuple[str, ...]
    dtype_names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


class PackedRows(Rows, frozen=True, kw_only=True):
    """``update_info`` of the nccl engine up to 0.27: packing is said with every update."""

    packed: bool
    packed_buffer_size_bytes: int
    packed_num_buffers: int


def rows(plan: TransferPlan, window: Window) -> Rows:
    """The tensors of one window.

    Raises:
        ManifestError: there are none.
    """
    tensors = tensors_of(plan, window)
    return Rows(
        names=tuple(tensor.name for tensor in tensors),
        dtype_names=tuple(tensor.dtype for tensor in tensors),
        shapes=tuple(tensor.shape for tensor in tensors),
    )


def packed_rows(plan: TransferPlan, window: Window) -> PackedRows:
    """The tensors of one window, and how they are put together.

    Raises:
        ManifestError: there are none.
    """
    found, geometry = rows(plan, window), plan.geometry
    return PackedRows(
        names=found.names,
        dtype_names=found.dtype_names,
        shapes=found.shapes,
        packed=geometry.packed,
        packed_buffer_size_bytes=geometry.buffer_bytes,
        packed_num_buffers=geometry.num_buffers,
    )


def tensors_of(plan: TransferPlan, window: Window) -> tuple[TensorMeta, ...]:
    """What *window* holds.

    Raises:
        ManifestError: nothing. From 0.33 on an update without names repeats the last one and waits for its bytes, for
            ever; up to 0.20 it is a flush.
    """
    tensors = plan.manifest.tensors[window.start : window.stop]
    if not tensors:
        raise ManifestError(f"Window {window.index} holds no tensors; an update call must name at least one.")
    return tensors
