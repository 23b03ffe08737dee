"""Which dtype each tensor travels in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from weightwire.messages import EngineInfo, Manifest, TensorMeta
from weightwire.options import Options

if TYPE_CHECKING:
    from weightwire.expected import Expected

_FLOATS = frozenset({"float32", "bfloat16", "float16"})


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
    tensors = tuple(_cast(tensor, target, expected) for tensor in manifest.tensors)
    return manifest if tensors == manifest.tensors else msgspec.structs.replace(manifest, tensors=tensors)


def _cast(tensor: TensorMeta, target: str, expected: Expected | None) -> TensorMeta:
    kept = expected.tensors.get(tensor.name) if expected is not None else None
    keep = kept is not None and kept.dtype == tensor.dtype == "float32" and _mixed(expected)
    if keep or tensor.dtype not in _FLOATS or tensor.dtype == target:
        return tensor
    return TensorMeta(tensor.name, target, tensor.shape)


def _mixed(expected: Expected | None) -> bool:
    """Whether the checkpoint holds more than one floating dtype, so that a float32 in it is meant."""
    return expected is not None and len({t.dtype for t in expected.tensors.values()} & _FLOATS) > 1
