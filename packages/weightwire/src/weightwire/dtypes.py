"""Which dtype each tensor travels in."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import msgspec

from weightwire.messages import EngineInfo, Manifest, TensorMeta
from weightwire.options import Options

if TYPE_CHECKING:
    from weightwire.expected import Expected

_FLOATS = frozenset({"float32", "bfloat16", "float16"})
_SEVERAL = 2


def on_the_wire(
    manifest: Manifest, infos: Sequence[EngineInfo], *, expected: Expected | None, options: Options
) -> Manifest:
    """The manifest as it travels: floating tensors in the engines' dtype, so that no byte is sent to be rounded off.

    A tensor that the engine's own checkpoint keeps in float32 stays float32 (router biases, for one), and nothing is
    changed with ``dtype="refuse"``, or where the engines differ or do not say.
    """
    targets = {info.dtype for info in infos}
    if options.dtype == "refuse" or len(targets) != 1 or not targets <= _FLOATS:
        return manifest
    (target,) = targets
    kept = _kept(expected)
    tensors = tuple(_cast(tensor, target, kept) for tensor in manifest.tensors)
    return manifest if tensors == manifest.tensors else msgspec.structs.replace(manifest, tensors=tensors)


def _cast(tensor: TensorMeta, target: str, kept: Collection[str]) -> TensorMeta:
    keep = tensor.dtype == "float32" and tensor.name in kept
    if keep or tensor.dtype not in _FLOATS or tensor.dtype == target:
        return tensor
    return TensorMeta(tensor.name, target, tensor.shape)


def _kept(expected: Expected | None) -> frozenset[str]:
    """The names whose float32 is meant: those of a checkpoint that holds other floating dtypes too."""
    if expected is None or len({one.dtype for one in expected.tensors.values()} & _FLOATS) < _SEVERAL:
        return frozenset()
    return frozenset(name for name, one in expected.tensors.items() if one.dtype == "float32")
