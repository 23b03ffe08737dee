"""What an engine expects to be sent: names, dtypes and shapes, as its own checkpoint says them.

No route of a stock server lists the names it accepts, and it answers 200 to most wrong ones, so that they must be
known here: from a checkpoint on this machine, or else from the first round, which later ones may not leave.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from weightwire.checkpoint import CheckpointIndex, ModelFacts, read_index
from weightwire.errors import ConfigurationError
from weightwire.messages import EngineInfo, Manifest, TensorMeta
from weightwire.options import Options

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HEAD = re.compile(r"(?!.*\bmtp\b)(?:.+\.)?lm_head\.weight")
_EMBEDDING = re.compile(r"(?:.+\.)?embed_tokens\.weight")
# What checkpoints hold and training code does not: old files' rotary tables and attention masks, which engines
# compute, and what transformers drops when it loads: layers for multi-token prediction (named so, or numbered beyond
# the last layer), and keys and values of layers that use those of earlier layers.
_UNTRAINED = re.compile(r".*\.rotary_emb\.inv_freq|.*\.attn\.(?:masked_)?bias|(?:.+\.)?mtp\..+")
_TEXT_LAYER = re.compile(r"(?:model\.|language_model\.)*layers\.(?P<number>\d+)\.(?P<rest>.+)")
_KEYS_VALUES = re.compile(r"self_attn\.[kv]_(?:proj|norm)\..+")


class Expected(msgspec.Struct, frozen=True):
    """What an engine expects.

    Attributes:
        tensors: by name.
        tied_head: whether the output head shares the embedding, in effect; None where it can't be told.
        origin: where this is known from, as it should read after "according to".
        optional: names that need not be sent.
    """

    tensors: dict[str, TensorMeta]
    tied_head: bool | None
    origin: str
    optional: frozenset[str] = frozenset()


def find(info: EngineInfo, options: Options) -> Expected | None:
    """Find out what the engine expects, without asking any network.

    In this order: the option ``expected``; the model's path, if the server's path exists on this machine; the
    model's id, if it is in the local Hugging Face cache.

    Args:
        info: the engine.
        options: the session's; only ``expected`` matters.

    Returns:
        The expectation; None where none of the three gives one (see :func:`from_manifest`).

    Raises:
        ConfigurationError: the option ``expected`` names no usable checkpoint.
    """
    if options.expected:
        return _from_option(options.expected)
    path = _local_copy(info.model, os.environ)
    try:
        return from_checkpoint(read_index(path)) if path else None
    except ConfigurationError:
        # Nobody asked for this copy: the server may read another file of it, or the cache may hold only its config.
        return None


def from_checkpoint(index: CheckpointIndex) -> Expected:
    """The expectation of an engine that was started from this checkpoint."""
    tensors = {tensor.name: tensor for tensor in index.tensors}
    tied = _tied_in_effect(index, tensors)
    optional = {name for name in tensors if _is_untrained(name, index.facts) or (tied and is_head(name))}
    return Expected(tensors, tied, f"the checkpoint {index.directory}", frozenset(optional))


def from_manifest(manifest: Manifest) -> Expected:
    """The expectation where nothing else is known: each round is like the first."""
    return Expected({tensor.name: tensor for tensor in manifest.tensors}, None, "the first push of this session")


def is_head(name: str) -> bool:
    """Whether *name* is the output head's weight; the heads of multi-token prediction are not meant."""
    return _HEAD.fullmatch(name) is not None


def is_embedding(name: str) -> bool:
    """Whether *name* is an input embedding that an output head may be tied to."""
    return _EMBEDDING.fullmatch(name) is not None


def _from_option(text: str) -> Expected:
    path = Path(text).expanduser()
    if not path.exists():
        path = _snapshot(text, os.environ) or path
    try:
        return from_checkpoint(read_index(path))
    except ConfigurationError as error:
        message = f"The option expected={text!r} can't be used: {error.message}"
        raise ConfigurationError(message, hint=error.hint) from error


def _local_copy(model: str, environ: Mapping[str, str]) -> Path | None:
    """Where the server's model lies on this machine, if it does.

    A relative path is the server's own business: a directory of that name here would be another one by chance.
    """
    path = Path(model)
    if path.is_absolute():
        return path if path.exists() else None
    return _snapshot(model, environ)


def _snapshot(model: str, environ: Mapping[str, str]) -> Path | None:
    """The directory of a hub id in the local Hugging Face cache, at the revision that ``main`` had last."""
    if not _HUB_ID.fullmatch(model):
        return None
    repository = _hub_cache(environ) / f"models--{model.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    snapshot = repository / "snapshots" / revision
    return snapshot if snapshot.is_dir() else None


def _hub_cache(environ: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps what it downloaded; the same variables in the same order as its own."""
    if cache := environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(cache).expanduser()
    if home := environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface" / "hub"


def _tied_in_effect(index: CheckpointIndex, tensors: Mapping[str, TensorMeta]) -> bool | None:
    """Whether the head is tied once the engine has loaded.

    Where the config says tied and the checkpoint has a head all the same, vLLM from 0.29 loads it, compares, and
    ties only if both are equal. (Qwen3-0.6B as published is such a checkpoint, with equal ones.) Older vLLM ignores
    that head; its control plane says so in ``EngineInfo.tied_head``.
    """
    head = next(filter(is_head, tensors), None)
    embedding = next(filter(is_embedding, tensors), None)
    if index.tied_head and head and embedding:
        return index.same_bytes(head, embedding)
    return index.tied_head


def _is_untrained(name: str, facts: ModelFacts) -> bool:
    layer = _TEXT_LAYER.fullmatch(name)
    if layer is None or facts.num_layers is None:
        return _UNTRAINED.fullmatch(name) is not None
    number = int(layer["number"])
    shares = number >= facts.num_layers - facts.num_shared_kv and _KEYS_VALUES.fullmatch(layer["rest"])
    return number >= facts.num_layers or bool(shares) or _UNTRAINED.fullmatch(name) is not None
