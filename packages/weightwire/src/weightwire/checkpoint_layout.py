"""Which files make up a checkpoint: one data file, or shards and the index that says which tensor is in which."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

import msgspec

from weightwire.errors import ConfigurationError
from weightwire.wording import some

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_ADAPTER = "adapter_model.safetensors"
_ADAPTER_CONFIG = "adapter_config.json"
_SHARD = re.compile(r".*-\d+-of-\d+\.safetensors")
_PICKLES = (".bin", ".pt", ".pth")
_CONVERT = "convert it: AutoModelForCausalLM.from_pretrained(SOURCE).save_pretrained(TARGET) writes safetensors"

T = TypeVar("T")


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def find_source(path: Path) -> Path:
    """Find the one file to start from.

    Args:
        path: a checkpoint's directory, or the file itself.

    Returns:
        An index, or the only data file.

    Raises:
        ConfigurationError: there is none, or more than one.
    """
    if not path.exists():
        raise ConfigurationError(
            f"There is no checkpoint at {path}.",
            hint="give a directory, a *.safetensors file or a *.safetensors.index.json on this machine",
        )
    if path.is_dir():
        return _find_in_directory(path)
    if path.name == _ADAPTER:
        raise _only_an_adapter(path)
    if not path.name.endswith((".safetensors", ".safetensors.index.json")):
        raise ConfigurationError(
            f"{path} is no checkpoint: expected a directory, a *.safetensors file or a *.safetensors.index.json.",
            hint=_CONVERT if path.suffix in _PICKLES else "",
        )
    return path


def _find_in_directory(directory: Path) -> Path:
    names = sorted(file.name for file in directory.iterdir() if file.is_file())
    indexes = [name for name in names if name.endswith(".safetensors.index.json")]
    data = [name for name in names if name.endswith(".safetensors") and name != _ADAPTER]
    if _INDEX in indexes or len(indexes) == 1:
        index = _INDEX if _INDEX in indexes else indexes[0]
        _refuse_two_checkpoints(directory, index, data)
        return directory / index
    shards = [name for name in data if _SHARD.fullmatch(name)]
    if shards and _SINGLE not in data:
        raise ConfigurationError(
            f"{directory} holds {len(shards)} shard(s) ({some(shards)}) without their index {_INDEX}, which says "
            "which tensor is in which.",
            hint="copy the index along with the shards, or save the checkpoint again with save_pretrained()",
        )
    if _SINGLE in data or len(data) == 1:
        return directory / (_SINGLE if _SINGLE in data else data[0])
    raise _nothing_usable(directory, names, indexes or data)


def _refuse_two_checkpoints(directory: Path, index: str, data: list[str]) -> None:
    """Engines such as vLLM follow the index and transformers prefers the single file, so that two are one too many."""
    if _SINGLE in data and _SINGLE not in read_map(directory / index).values():
        raise ConfigurationError(
            f"{directory} holds two checkpoints: {_SINGLE}, and the shards of {index}; engines load the shards, "
            "transformers loads the single file.",
            hint="remove the one that is out of date, or give the path of the file or of the index",
        )


def _nothing_usable(directory: Path, names: list[str], candidates: list[str]) -> ConfigurationError:
    if not candidates and {_ADAPTER, _ADAPTER_CONFIG} & set(names):
        return _only_an_adapter(directory)
    if candidates:
        return ConfigurationError(
            f"{directory} holds {len(candidates)} checkpoints ({some(candidates)}).",
            hint="give the path of the one that is meant",
        )
    pickles = [name for name in names if name.endswith(_PICKLES)]
    found = f"only {some(pickles)}" if pickles else some(names) if names else "no files"
    return ConfigurationError(
        f"{directory} holds no *.safetensors file; found {found}.",
        hint=_CONVERT if pickles else "check the path; a checkpoint directory holds config.json and *.safetensors",
    )


def _only_an_adapter(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{path} holds only an adapter (LoRA, or another kind of PEFT), not the weights of a model.",
        hint="merge it: AutoPeftModelForCausalLM.from_pretrained(ADAPTER).merge_and_unload().save_pretrained(TARGET), "
        "and push TARGET; or give the PEFT model itself to weightwire.connect(), which merges as it sends",
    )


def read_map(index: Path) -> dict[str, str]:
    """Read which tensor is in which file, from an index.

    Raises:
        ConfigurationError: it is damaged, or names a file elsewhere.
    """
    weight_map = decode(index, _Index).weight_map
    outside = next((file for file in weight_map.values() if Path(file).name != file), None)
    if outside is not None:
        raise ConfigurationError(f"{index} names {outside!r}, which is not a file beside it.")
    return weight_map


def decode(path: Path, kind: type[T]) -> T:
    """Read a JSON file of this kind.

    Raises:
        ConfigurationError: it can't be read, or is of another kind.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path} can't be read: {error}.", hint="download the file again, or save the checkpoint again"
        ) from error
