"""Tensors that are hard to move, and a source of them that can be told to fail."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor
from weightwire.messages import Manifest, TensorMeta
from weightwire.planes import RankGroup, SingleRank

from weightwire_testing.model import fingerprint

BUFFER_BYTES = 4096
"""The pack size of the suites: some tensors are far smaller, some far larger."""

_SHAPES: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
    "first": (torch.float32, (3, 5, 7)),
    "half": (torch.float16, (2, 1)),
    "larger.than.a.pack": (torch.float32, (64, 33)),
    "brain": (torch.bfloat16, (4, 9)),
    "long": (torch.int64, (3,)),
    "double": (torch.float64, (2, 2)),
    "exactly.a.pack": (torch.uint8, (BUFFER_BYTES,)),
    "one": (torch.float32, (1,)),
    "last": (torch.bfloat16, (2, 64)),
}
_ODD_PLACES: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
    "odd": (torch.uint8, (3,)),
    "wide.behind.odd": (torch.float32, (5,)),
    "odd.brain": (torch.bfloat16, (7,)),
    "wide.again": (torch.float64, (2,)),
}
_MORE_DTYPES: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
    "flags": (torch.bool, (8,)),
    "short": (torch.int16, (5, 2)),
    "wide.eight": (torch.float8_e5m2, (4,)),
    "narrow.eight": (torch.float8_e4m3fn, (4,)),
    "signed": (torch.int8, (4,)),
    "int": (torch.int32, (3,)),
}


def _filled(table: dict[str, tuple[torch.dtype, tuple[int, ...]]], seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made: dict[str, Tensor] = {}
    for name, (dtype, shape) in table.items():
        numel = torch.Size(shape).numel()
        limit = 2 if dtype is torch.bool else 256
        raw = torch.randint(0, limit, (numel * dtype.itemsize,), dtype=torch.uint8, generator=generator)
        made[name] = raw.view(dtype).view(shape)
    return made


def odd_shapes(seed: int) -> dict[str, Tensor]:
    """Every width, tensors below, at and above the size of a pack; aligned within packs."""
    return _filled(_SHAPES, seed)


def odd_places(seed: int) -> dict[str, Tensor]:
    """Tensors that begin, inside a pack, where their dtype can't be read."""
    return _filled(_ODD_PLACES, seed)


def more_dtypes(seed: int) -> dict[str, Tensor]:
    """Every dtype that the wire can name."""
    return _filled(_MORE_DTYPES, seed)


def scalars(seed: int) -> dict[str, Tensor]:
    """Tensors without dimensions between others."""
    value = float(seed)
    return {"before": torch.full((2,), value), "scalar": torch.tensor(value), "after": torch.full((3,), value)}


def digests(tensors: dict[str, Tensor]) -> dict[str, str]:
    """The digest of each, as a receiver makes it."""
    return {name: fingerprint({"": tensor}) for name, tensor in tensors.items()}


def metas(tensors: dict[str, Tensor]) -> tuple[TensorMeta, ...]:
    """What is known of them before they travel."""
    return tuple(
        TensorMeta(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in tensors.items()
    )


class GatherFailed(Exception):
    """What a source raises that was told to fail."""


class TensorSource:
    """A weight source over tensors at hand, two to a group.

    Attributes:
        gathered: the groups asked for, in order.
        threads: the threads that asked.
    """

    def __init__(self, tensors: dict[str, Tensor], *, fails_at: int = -1) -> None:
        """Hold *tensors*; group number *fails_at* raises :class:`GatherFailed`."""
        self.ranks: RankGroup = SingleRank()
        self.tensors = tensors
        self.fails_at = fails_at
        self.gathered: list[int] = []
        self.threads: set[int] = set()
        groups = tuple((start, min(start + 2, len(tensors))) for start in range(0, len(tensors), 2))
        self._manifest = Manifest(metas(tensors), groups)

    def manifest(self) -> Manifest:
        """What it holds."""
        return self._manifest

    def gather(self, group: int) -> Sequence[object]:
        """The tensors of a group.

        Raises:
            GatherFailed: it was told to.
        """
        self.gathered.append(group)
        self.threads.add(threading.get_ident())
        if group == self.fails_at:
            raise GatherFailed(f"group {group} can't be gathered")
        start, stop = self._manifest.groups[group]
        return list(self.tensors.values())[start:stop]
