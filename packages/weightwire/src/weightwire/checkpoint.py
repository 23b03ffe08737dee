"""Read what a Hugging Face checkpoint holds, from its headers alone: no torch, no numpy, no tensor data.

A checkpoint is a directory with ``model.safetensors``, or with several shards and an index that says which tensor is
in which. The core reads it to know what an engine expects; a source reads it to know what to send.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weightwire.checkpoint_layout import decode, find_source, read_map
from weightwire.errors import ConfigurationError
from weightwire.fused import block_of
from weightwire.messages import TensorMeta
from weightwire.safetensors_header import Stored, read_header
from weightwire.wording import some

_CHUNK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class ModelFacts:
    """What ``config.json`` says of the model; models of several parts say it of their text model.

    Attributes:
        tied_head: whether the output head and the embedding are one; None where it says nothing.
        num_layers: how many layers there are; None where it says nothing.
        num_shared_kv: how many of them, the last, use the keys and values of earlier ones (Gemma 3n and 4).
    """

    tied_head: bool | None = None
    num_layers: int | None = None
    num_shared_kv: int = 0


@dataclass(frozen=True)
class CheckpointIndex:
    """What a checkpoint holds.

    Attributes:
        directory: where its files are.
        tensors: in the order of the index or of the file, but layers together and by number (2 before 10).
        files: the file name of each tensor, by its name.
        spans: the first byte of each tensor in its file, and one past its last, by its name.
        facts: what its ``config.json`` says.
    """

    directory: Path
    tensors: tuple[TensorMeta, ...]
    files: dict[str, str]
    spans: dict[str, tuple[int, int]]
    facts: ModelFacts

    @property
    def tied_head(self) -> bool | None:
        """Whether the config says that the output head and the embedding are one; None where it says nothing."""
        return self.facts.tied_head

    def same_bytes(self, one: str, other: str) -> bool:
        """Whether two tensors hold the same bytes; the only question here that reads data, in chunks."""
        left, right = self.spans[one], self.spans[other]
        if left[1] - left[0] != right[1] - right[0]:
            return False
        with (
            (self.directory / self.files[one]).open("rb") as first,
            (self.directory / self.files[other]).open("rb") as second,
        ):
            first.seek(left[0])
            second.seek(right[0])
            sizes = range(left[1] - left[0], 0, -_CHUNK_BYTES)
            return all(first.read(min(n, _CHUNK_BYTES)) == second.read(min(n, _CHUNK_BYTES)) for n in sizes)


def read_index(path: Path) -> CheckpointIndex:
    """Read the headers of a checkpoint.

    Args:
        path: its directory, a ``*.safetensors`` file, or a ``*.safetensors.index.json``.

    Returns:
        What it holds.

    Raises:
        ConfigurationError: there is no checkpoint, or it is incomplete, truncated or damaged.
    """
    source = find_source(Path(path))
    if source.suffix == ".json":
        stored = _from_shards(source)
    else:
        stored = {tensor.meta.name: (source.name, tensor) for tensor in read_header(source)}
    if not stored:
        raise ConfigurationError(f"{source} holds no tensors.", hint="save the checkpoint again with save_pretrained()")
    return CheckpointIndex(
        directory=source.parent,
        tensors=_by_layer(stored),
        files={name: file for name, (file, _) in stored.items()},
        spans={name: (tensor.start, tensor.stop) for name, (_, tensor) in stored.items()},
        facts=_read_facts(source.parent / "config.json"),
    )


def _from_shards(index: Path) -> dict[str, tuple[str, Stored]]:
    """The tensors that an index lists, in its order."""
    weight_map = read_map(index)
    files = sorted(set(weight_map.values()))
    missing = [file for file in files if not (index.parent / file).is_file()]
    if missing:
        raise ConfigurationError(
            f"{index} names {len(files)} shard(s), and {len(missing)} of them are missing: {some(missing)}.",
            hint="finish the download or the copy of the checkpoint",
        )
    held = {file: {tensor.meta.name: tensor for tensor in read_header(index.parent / file)} for file in files}
    _refuse_twins(index, held)
    lost = [name for name, file in weight_map.items() if name not in held[file]]
    if lost:
        raise ConfigurationError(
            f"{index} and its shards don't fit together: {weight_map[lost[0]]} lacks {lost[0]}, which the index says "
            f"it holds ({len(lost)} tensor(s) in all).",
            hint="shards and index are from different saves; save or download the checkpoint again",
        )
    return {name: (file, held[file][name]) for name, file in weight_map.items()}


def _refuse_twins(index: Path, held: Mapping[str, Mapping[str, Stored]]) -> None:
    seen: dict[str, str] = {}
    for file, tensors in held.items():
        for name in tensors:
            if name in seen:
                raise ConfigurationError(
                    f"{index.parent} holds {name} twice: in {seen[name]} and in {file}.",
                    hint="the shards are from different saves; save or download the checkpoint again",
                )
            seen[name] = file


def _by_layer(stored: Mapping[str, tuple[str, Stored]]) -> tuple[TensorMeta, ...]:
    """Put the tensors of a layer together and layers in numeric order; the rest stays as it is.

    Indexes are sorted as text, so that layer 10 comes before layer 2, and a layer may lie in two shards.
    """
    first: dict[str, int] = {}
    keys: dict[str, tuple[int, int]] = {}
    for position, name in enumerate(stored):
        family, _, number = block_of(name).rpartition(".")
        keys[name] = (first.setdefault(family, position), int(number)) if number else (position, 0)
    return tuple(stored[name][1].meta for name in sorted(stored, key=keys.__getitem__))


def _read_facts(path: Path) -> ModelFacts:
    config = decode(path, dict[str, object]) if path.is_file() else {}
    text = config.get("text_config")
    merged = {**text, **config} if isinstance(text, dict) else config
    tied, layers, shared = map(merged.get, ("tie_word_embeddings", "num_hidden_layers", "num_kv_shared_layers"))
    return ModelFacts(
        tied_head=tied if isinstance(tied, bool) else None,
        num_layers=layers if isinstance(layers, int) else None,
        num_shared_kv=shared if isinstance(shared, int) else 0,
    )
