"""Tensors that share their storage: a checkpoint holds one of them."""

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


def without_twins(named: Iterable[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    """Leave out all but one of the names of every storage: a tied head goes, otherwise the first name stays.

    Args:
        named: checkpoint names and tensors, in order.

    Returns:
        What is left, in the same order.
    """
    rows = list(named)
    names = kept((name, identity(tensor)) for name, tensor in rows)
    return [(name, tensor) for name, tensor in rows if name in names]


def kept(named: Iterable[tuple[str, Hashable]]) -> set[str]:
    """Of the names with equal keys keep one: not the output head's, otherwise the first.

    A head of multi-token prediction is kept beside the embedding it is tied to: a draft model loads its own.
    """
    keeper: dict[Hashable, str] = {}
    drafts: set[str] = set()
    for name, key in named:
        if _is_draft(name):
            drafts.add(name)
        elif key not in keeper or (_is_head(keeper[key]) and not _is_head(name)):
            keeper[key] = name
    return drafts | set(keeper.values())


def _is_head(name: str) -> bool:
    return HEAD in name.split(".")


def _is_draft(name: str) -> bool:
    return "mtp" in name.split(".")
