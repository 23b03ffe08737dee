"""The output head, which may share its weight with the embedding."""

from __future__ import annotations

import re

from weightwire.checkpoint import CheckpointIndex

_HEAD = re.compile(r"(?!.*\bmtp\b)(?:.+\.)?lm_head\.weight")
_EMBEDDING = re.compile(r"(?:.+\.)?embed_tokens\.weight")


def is_head(name: str) -> bool:
    """Whether *name* is the output head's weight; the heads of multi-token prediction are not meant."""
    return _HEAD.fullmatch(name) is not None


def is_embedding(name: str) -> bool:
    """Whether *name* is an input embedding that an output head may be tied to."""
    return _EMBEDDING.fullmatch(name) is not None


def tied_in_effect(index: CheckpointIndex) -> bool | None:
    """Whether the head is tied once the engine has loaded.

    Where the config says tied and the checkpoint has a head all the same, vLLM from 0.29 loads it, compares, and
    ties only if both are equal. Older vLLM ignores that head; its control plane says so in ``EngineInfo.tied_head``.
    """
    head = next(filter(is_head, index.files), None)
    embedding = next(filter(is_embedding, index.files), None)
    if index.tied_head and head and embedding:
        return index.same_bytes(head, embedding)
    return index.tied_head
