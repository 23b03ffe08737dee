"""vLLM's own ``nccl`` engine, receiving over gloo: payloads, packs and failures are the original's.

The pack rule is written out here instead of taken from ``weightwire_torch``, so that the two check each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import msgspec
import torch
from torch import Tensor
from weightwire.messages import PackGeometry, TensorMeta

from weightwire_testing.reference.release import Release
from weightwire_testing.reference.reload import Reload
from weightwire_testing.reference.stock_group import StockGroup, check_unique_id, id_from_store, join
from weightwire_testing.reference.stock_payloads import StockUpdate, parse_init, parse_update
from weightwire_testing.reference.transfer import Place, collective

_NCCL_DTYPES = frozenset(
    {
        torch.int8,
        torch.uint8,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.float8_e4m3fn,
    }
)

_WRITTEN_OVER = 0x44
"""What a pack's bytes become where nothing keeps them until a module that began in them is whole; no weight is that."""

Load = Callable[[Iterable[tuple[str, Tensor]]], None]


class StockEngine:
    """One worker's receiving end."""

    opens_reload = False

    def __init__(self, place: Place) -> None:
        """Not connected."""
        self._place = place
        self._group: StockGroup | None = None
        self._geometry = PackGeometry(packed=False, buffer_bytes=0, num_buffers=1)
        self._last: StockUpdate | None = None

    def init_transfer(self, init_info: msgspec.Raw) -> None:
        """Join the sender's group.

        Raises:
            ValueError: the payload, the id or the address is wrong.
        """
        init = parse_init(init_info, self._place.release)
        self._geometry = init.geometry
        timeout = self._place.timeout
        unique_id = init.unique_id or id_from_store(init.master_address or "", init.master_port or 0, timeout=timeout)
        rank = init.rank_offset + self._place.index
        self._group = join(check_unique_id(unique_id), rank, world_size=init.world_size, timeout=timeout)

    def update(self, update_info: msgspec.Raw, reload: Reload, *, checkpoint_format: bool) -> None:
        """Receive and load.

        Raises:
            ValueError, RuntimeError, AttributeError, TypeError, AssertionError: as vLLM's engine would, some of them
                in mid-stream.
        """
        release = self._place.release
        update = self._with_last(parse_update(update_info, release))
        if not release.two_call:
            self._receive(update, reload.load if checkpoint_format else reload.copy)
        elif update.is_checkpoint_format:
            reload.begin()
            self._receive(update, reload.load)
            reload.finish()
        else:
            self._receive(update, reload.copy)

    def shutdown(self) -> None:
        """Leave the group."""
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def _with_last(self, update: StockUpdate) -> StockUpdate:
        """From 0.33, three empty lists mean those of the update before."""
        if self._place.release.since(33):
            if not update.names and self._last is None:
                raise ValueError("no metadata was sent yet, so empty lists can't stand for it")
            update = update if update.names or self._last is None else self._last
            self._last = update
        return update

    def _receive(self, update: StockUpdate, load: Load) -> None:
        group = self._group
        if group is None:
            raise RuntimeError("NCCL weight transfer not initialized. Call init_transfer_engine() first.")
        geometry = self._geometry if self._place.release.packing_in_init else update.geometry
        arriving = (
            _packed(update.tensors, geometry.buffer_bytes, self._place.release)
            if geometry.packed
            else _unpacked(update.tensors)
        )
        racing = geometry.packed and geometry.num_buffers > 1 and not self._place.release.fenced_packs
        for buffer, unpack in arriving:
            collective(self._place, partial(group.broadcast, buffer))
            load(unpack())
            if racing:
                buffer.fill_(_WRITTEN_OVER)


Weights = list[tuple[str, Tensor]]

Arrival = tuple[Tensor, Callable[[], Weights]]
"""Where the next collective's bytes go, and what they are once they are there."""


def _unpacked(tensors: Sequence[TensorMeta]) -> Iterator[Arrival]:
    """One collective a tensor. NCCL has a table of dtypes."""
    for meta in tensors:
        received = torch.empty(meta.shape, dtype=getattr(torch, meta.dtype))
        if received.dtype not in _NCCL_DTYPES:
            raise ValueError(f"Unsupported dtype: {received.dtype}")
        yield received.view(-1).view(torch.uint8), partial(list, [(meta.name, received)])


def _packed(tensors: Sequence[TensorMeta], limit: int, release: Release) -> Iterator[Arrival]:
    """One collective a pack, of bytes."""
    for pack in _packs(tensors, limit):
        buffer = torch.empty(sum(map(_nbytes, pack)), dtype=torch.uint8)
        yield buffer, partial(_unpack, buffer, pack, release)


def _unpack(buffer: Tensor, pack: Sequence[TensorMeta], release: Release) -> Weights:
    """Cut a pack. A tensor at an odd place fails in torch, as does one without dimensions up to 0.31."""
    weights: Weights = []
    for meta, piece in zip(pack, torch.split(buffer, list(map(_nbytes, pack))), strict=True):
        typed = piece.view(getattr(torch, meta.dtype))
        weights.append((meta.name, typed.view(meta.shape) if release.since(32) else typed.view(*meta.shape)))
    return weights


def _packs(tensors: Sequence[TensorMeta], limit: int) -> Iterator[list[TensorMeta]]:
    """Close a pack with the tensor that takes it over *limit* bytes."""
    pack: list[TensorMeta] = []
    size = 0
    for meta in tensors:
        pack.append(meta)
        size += _nbytes(meta)
        if size > limit:
            yield pack
            pack, size = [], 0
    if pack:
        yield pack


def _nbytes(meta: TensorMeta) -> int:
    dtype: torch.dtype = getattr(torch, meta.dtype)
    return meta.numel * dtype.itemsize
