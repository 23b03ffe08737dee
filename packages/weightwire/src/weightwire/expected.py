"""What an engine expects to be sent: names, dtypes and shapes, as its own checkpoint says them.

No route of a stock server lists the names it accepts, and it answers 200 to most wrong ones, so that they must be
known here: from a checkpoint on this machine, or else from the first round, which later ones may not leave.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from weightwire.checkpoint import CheckpointIndex, ModelFacts, read_index
from weightwire.errors import ConfigurationError
from weightwire.hub_cache import snapshot
from weightwire.messages import EngineInfo, Manifest, TensorMeta
from weightwire.options import Options
from weightwire.output_head import is_head, tied_in_effect

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
    path = _local_copy(info.model)
    try:
        return from_checkpoint(read_index(path)) if path else None
    except ConfigurationError:
        # Nobody asked for this copy: the server may read another file of it, or the cache may hold only its config.
        return None


def from_checkpoint(index: CheckpointIndex) -> Expected:
    """The expectation of an engine that was started from this checkpoint."""
    tensors = {tensor.name: tensor for tensor in index.tensors}
    tied = tied_in_effect(index)
    optional = {name for name in tensors if _is_untrained(name, index.facts) or (tied and is_head(name))}
    return Expected(tensors, tied, f"the checkpoint {index.directory}", frozenset(optional))


def from_manifest(manifest: Manifest) -> Expected:
    """The expectation where nothing else is known: each round is like the first."""
    return Expected({tensor.name: tensor for tensor in manifest.tensors}, None, "the first push of this session")


def _from_option(text: str) -> Expected:
    path = Path(text).expanduser()
    if not path.exists():
        path = snapshot(text) or path
    try:
        return from_checkpoint(read_index(path))
    except ConfigurationError as error:
        message = f"The option expected={text!r} can't be used: {error.message}"
        raise ConfigurationError(message, hint=error.hint) from error


def _local_copy(model: str) -> Path | None:
    """Where the server's model lies on this machine, if it does.

    A relative path is the server's own business: a directory of that name here would be another one by chance.
    """
    path = Path(model)
    if path.is_absolute():
        return path if path.exists() else None
    return snapshot(model)


def _is_untrained(name: str, facts: ModelFacts) -> bool:
    layer = _TEXT_LAYER.fullmatch(name)
    if layer is None or facts.num_layers is None:
        return _UNTRAINED.fullmatch(name) is not None
    number = int(layer["number"])
    shares = number >= facts.num_layers - facts.num_shared_kv and _KEYS_VALUES.fullmatch(layer["rest"])
    return number >= facts.num_layers or bool(shares) or _UNTRAINED.fullmatch(name) is not None
