"""Tensors that share their storage: which of them belong to a checkpoint."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import torch

HEAD = "lm_head"
"""The module whose tensors are left out where an embedding has the same storage: a checkpoint holds the embedding."""

Identity = tuple[object, ...]

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def identity(tensor: torch.Tensor) -> Identity:
    """Equal for tensors that are the same elements of the same storage, and only for these.

    Tensors without memory of their own (on meta, emptied by a sharding framework, subclasses that wrap others) are
    equal only to themselves.
    """
    plain = type(tensor) in _PLAIN and not tensor.is_meta
    address = tensor.untyped_storage().data_ptr() if plain else 0
    if address == 0:
        return (id(tensor),)
    return (address, tensor.device, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def untied(named: Iterable[tuple[str, Hashable]]) -> set[str]:
    """All names but that of an output head with the key of another tensor: a checkpoint holds the embedding.

    Other tensors that share their storage are all sent: an engine that ties them too gets the same bits twice, and one
    that does not would keep the old ones without a word. A head of multi-token prediction is kept as well: a draft
    model loads its own.

    Args:
        named: checkpoint names, each with the identity of its tensor.
    """
    rows = list(named)
    others = {key for name, key in rows if not _is_head(name)}
    return {name for name, key in rows if not (_is_head(name) and key in others)}


def _is_head(name: str) -> bool:
    parts = name.split(".")
    return HEAD in parts and "mtp" not in parts
