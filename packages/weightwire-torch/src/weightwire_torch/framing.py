"""How tensors are put together for the wire: vLLM's pack rule, byte for byte, and ours over gloo too.

Raw bytes of contiguous tensors, one behind the other: no alignment, no padding, no header. The receiver cuts them by
the manifest. The same in vLLM from 0.17.1 to 0.33.0.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch
from weightwire.messages import PackGeometry, TensorMeta, item_bytes

from weightwire_torch.dtypes import torch_dtype


class Pack(msgspec.Struct, frozen=True):
    """What one collective carries.

    Attributes:
        start: the first tensor, as an index into the sequence that was framed.
        tensors: what it carries, in order.
        offsets: where each begins, in bytes.
        nbytes: its size.
    """

    start: int
    tensors: tuple[TensorMeta, ...]
    offsets: tuple[int, ...]
    nbytes: int

    @property
    def stop(self) -> int:
        """One past the last tensor."""
        return self.start + len(self.tensors)


def packs(tensors: Sequence[TensorMeta], geometry: PackGeometry) -> tuple[Pack, ...]:
    """Cut *tensors* into packs.

    Packed: tensors are added until their sum is strictly greater than ``buffer_bytes``; that pack, the tensor that
    went over it included, is one collective. What remains at the end is the last. Unpacked: one tensor each.

    Raises:
        ManifestError: a dtype can't be sent.
    """
    limit = geometry.buffer_bytes if geometry.packed else -1
    done: list[Pack] = []
    start, total, offsets = 0, 0, list[int]()
    for index, meta in enumerate(tensors):
        offsets.append(total)
        total += meta.nbytes
        if total > limit:
            done.append(Pack(start, tuple(tensors[start : index + 1]), tuple(offsets), total))
            start, total, offsets = index + 1, 0, []
    if offsets:
        done.append(Pack(start, tuple(tensors[start:]), tuple(offsets), total))
    return tuple(done)


def largest_pack(tensors: Sequence[TensorMeta], geometry: PackGeometry) -> int:
    """The size in bytes of the largest pack that any window of *tensors* can hold; 0 for no tensors.

    Windows are cut later, round by round, and packing begins anew in each; a ring made for this size fits them all.
    """
    limit = geometry.buffer_bytes if geometry.packed else -1
    largest, total, first = 0, 0, 0
    for meta in tensors:
        while total > limit and total > 0:  # what stands before the last tensor of a pack is not over the limit
            total -= tensors[first].nbytes
            first += 1
        total += meta.nbytes
        largest = max(largest, total)
    return largest


def views(buffer: torch.Tensor, pack: Pack) -> list[torch.Tensor]:
    """The tensors of a pack, as views of the received *buffer*.

    A tensor that begins where its dtype can't (an odd number of bytes before a wider dtype) is a copy.

    Args:
        buffer: one-dimensional uint8, at least ``pack.nbytes`` long.
        pack: what is in it.
    """
    return [_view(buffer, meta, at) for meta, at in zip(pack.tensors, pack.offsets, strict=True)]


def place(buffer: torch.Tensor, pack: Pack, *, index: int) -> torch.Tensor | None:
    """Where tensor *index* of a pack goes, as a view of its dtype and shape; None where it would be misaligned."""
    meta, at = pack.tensors[index], pack.offsets[index]
    return _view(buffer, meta, at) if _aligned(buffer, meta, at) else None


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, as a one-dimensional uint8 view."""
    return tensor.detach().view(-1).view(torch.uint8)


def put_misaligned(buffer: torch.Tensor, pack: Pack, *, index: int, tensor: torch.Tensor) -> None:
    """Write *tensor* as tensor *index* of a pack, byte by byte, where :func:`place` is None."""
    meta, at = pack.tensors[index], pack.offsets[index]
    cast = tensor.detach().to(torch_dtype(meta.dtype)).contiguous()
    buffer[at : at + meta.nbytes].copy_(raw(cast))


def _view(buffer: torch.Tensor, meta: TensorMeta, at: int) -> torch.Tensor:
    piece = buffer[at : at + meta.nbytes]
    if not _aligned(buffer, meta, at):
        piece = piece.clone()
    return piece.view(torch_dtype(meta.dtype)).view(meta.shape)


def _aligned(buffer: torch.Tensor, meta: TensorMeta, at: int) -> bool:
    return (int(buffer.storage_offset()) + at) % item_bytes(meta.dtype) == 0
