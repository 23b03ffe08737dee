"""A manifest from tensors: what can be sent, in which order, and which tensors are gathered together."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import groupby

import torch

from weightwire.errors import ManifestError
from weightwire.messages import Manifest, TensorMeta
from weightwire_torch.dtypes import TORCH_DTYPES, may_become, torch_dtype, wire_name


def manifest_of(named: Iterable[tuple[str, torch.Tensor]], *, dtype: str = "") -> Manifest:
    """Describe *named* tensors, one group a layer.

    Args:
        named: checkpoint names and tensors, in the order in which they shall travel.
        dtype: name of a floating dtype that plain floating tensors are sent in; empty to send them as they are.

    Raises:
        ManifestError: there is nothing to send, or a tensor can't be sent; names it.
    """
    tensors = tuple(meta_of(name, tensor, dtype=dtype) for name, tensor in named)
    return checked(Manifest(tensors=tensors, groups=groups_by_layer([meta.name for meta in tensors])))


def checked(manifest: Manifest) -> Manifest:
    """Return *manifest* if it names something, and nothing twice.

    Raises:
        ManifestError: it is empty, or a name stands in it twice.
    """
    if not manifest.tensors:
        raise ManifestError("There are no tensors to send: the model has no parameters.")
    seen: set[str] = set()
    for name in manifest.names:
        if name in seen:
            raise ManifestError(f"The tensor {name!r} is there twice; an engine would load only one of them.")
        seen.add(name)
    return manifest


def meta_of(name: str, tensor: torch.Tensor, *, dtype: str = "") -> TensorMeta:
    """Describe one tensor.

    Raises:
        ManifestError: it can't be sent; says why, and what to install or to do.
    """
    why, hint = _refusal(tensor)
    if why:
        raise ManifestError(f"The tensor {name!r} {why}.", hint=hint)
    cast = dtype and may_become(tensor.dtype, torch_dtype(dtype))
    return TensorMeta(name, dtype if cast else wire_name(tensor.dtype), tuple(tensor.shape))


def groups_by_layer(names: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Cut a sequence of names where the layer changes.

    The layer is what stands up to the outermost integer segment (``model.layers.7``); names without one before,
    between and behind the layers form groups of their own.

    Returns:
        Half-open ranges that cover *names* in order.
    """
    groups: list[tuple[int, int]] = []
    start = 0
    for _, members in groupby(names, key=_layer):
        stop = start + len(list(members))
        groups.append((start, stop))
        start = stop
    return tuple(groups)


def _layer(name: str) -> str:
    parts = name.split(".")
    first = next((i for i, part in enumerate(parts) if part.isdecimal()), -1)
    return ".".join(parts[: first + 1])


def _refusal(tensor: torch.Tensor) -> tuple[str, str]:
    """Why *tensor* can't be sent, as it reads behind its name, and a hint; two empty strings if it can."""
    if is_dtensor(tensor):
        return "is sharded (a DTensor)", "pip install weightwire-fsdp2"
    if hasattr(tensor, "ds_id") and tensor.numel() == 0:
        return (
            "is partitioned by DeepSpeed ZeRO-3",
            "pip install weightwire-deepspeed, and pass the DeepSpeed engine instead of its module",
        )
    if type(tensor).__name__ == "FlatParameter":
        return "is flattened by FSDP1", "wrap the model with fully_shard (FSDP2), and pip install weightwire-fsdp2"
    if tensor.is_meta:
        return "has no values: it is on the meta device", "load the weights before you connect"
    if tensor.layout is not torch.strided:
        return f"has the layout {tensor.layout}", "make it dense: tensor.to_dense()"
    if tensor.numel() == 0:
        return f"is empty (shape {tuple(tensor.shape)})", "leave it out, or find out why it was emptied"
    if wire_name(tensor.dtype) not in TORCH_DTYPES:
        return f"has the dtype {wire_name(tensor.dtype)}, which can't be sent", f"use one of {', '.join(TORCH_DTYPES)}"
    return "", ""


def is_dtensor(tensor: torch.Tensor) -> bool:
    """Whether *tensor* is a DTensor.

    Its module is not imported for that (it costs half a second): where it was never imported, nothing is one.
    """
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
