"""What travels: tensors by name, dtype and shape, and how they are put together. Data only."""

from __future__ import annotations

import hashlib
import math
from functools import cached_property

import msgspec

from weightwire.errors import ManifestError

ITEM_BYTES: dict[str, int] = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
"""Bytes per element, by the dtype's name on the wire (``str(torch.dtype)`` without its prefix)."""


class TensorMeta(msgspec.Struct, frozen=True):
    """One tensor to be sent.

    Attributes:
        name: its checkpoint name, as ``save_pretrained`` writes it.
        dtype: the dtype's name on the wire, a key of :data:`ITEM_BYTES`.
        shape: the full, unsharded shape, in elements.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements; 1 for a 0-dimensional tensor."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size on the wire in bytes.

        Raises:
            ManifestError: the dtype can't be sent.
        """
        return self.numel * item_bytes(self.dtype)


def item_bytes(dtype: str) -> int:
    """Bytes per element of *dtype*.

    Raises:
        ManifestError: the dtype can't be sent.
    """
    if dtype not in ITEM_BYTES:
        raise ManifestError(f"The dtype {dtype!r} can't be sent; known are {', '.join(sorted(ITEM_BYTES))}.")
    return ITEM_BYTES[dtype]


class Manifest(msgspec.Struct, frozen=True, dict=True):
    """What a trainer sends: the ordered tensors, and how they are gathered.

    Attributes:
        tensors: in the order in which they travel.
        groups: half-open ranges ``(start, stop)`` into *tensors* that cover it in order. A group is gathered in
            one step (a layer, usually), the same on every rank.
    """

    tensors: tuple[TensorMeta, ...]
    groups: tuple[tuple[int, int], ...]

    @cached_property
    def digest(self) -> str:
        """A name for the contents: equal digests mean equal names, dtypes and shapes in equal order."""
        rows = [(t.name, t.dtype, t.shape) for t in self.tensors]
        return hashlib.blake2b(msgspec.json.encode(rows), digest_size=16).hexdigest()

    @cached_property
    def nbytes(self) -> int:
        """Size of all tensors on the wire, in bytes."""
        return sum(t.nbytes for t in self.tensors)

    @cached_property
    def largest(self) -> int:
        """Size of the largest tensor in bytes; 0 for an empty manifest."""
        return max((t.nbytes for t in self.tensors), default=0)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(t.name for t in self.tensors)


class PackGeometry(msgspec.Struct, frozen=True, kw_only=True):
    """How tensors are put together for the wire. Both sides must hold the same.

    Attributes:
        packed: several tensors per collective; otherwise one each.
        buffer_bytes: a pack is closed by the tensor that takes it *over* this many bytes (vLLM's rule).
        num_buffers: how many packs the receiver works on at once.
    """

    packed: bool
    buffer_bytes: int
    num_buffers: int
