"""The header of a safetensors file: names, dtypes, shapes and where the bytes lie.

Read by hand, because the core stays without torch and numpy, and the format is small: eight bytes of length
(little-endian), that much JSON, then the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from weightwire.errors import ConfigurationError
from weightwire.messages import TensorMeta

DTYPES: dict[str, str] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
"""The dtypes of the format that can be sent, and their names on the wire."""

_LENGTH_BYTES = 8


class Stored(NamedTuple):
    """One tensor of a file.

    Attributes:
        meta: its name, dtype and shape.
        start: first byte of its data, counted from the start of the file.
        stop: one past the last.
    """

    meta: TensorMeta
    start: int
    stop: int


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


_HEADER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENTRY = msgspec.json.Decoder(_Entry)


def read_header(path: Path) -> tuple[Stored, ...]:
    """Read the header of one file; the data is not touched.

    Args:
        path: a ``*.safetensors`` file.

    Returns:
        Its tensors, in the order in which their bytes lie.

    Raises:
        ConfigurationError: the file can't be read, is truncated or damaged, or is not a safetensors file.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = _header_bytes(path, file, size)
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read: {error.strerror or error}.") from error
    data_start = _LENGTH_BYTES + len(header)
    entries = (_stored(path, data_start, *item) for item in _entries(path, header))
    stored = tuple(sorted(entries, key=lambda one: (one.start, one.stop)))
    _refuse_holes(path, stored, data_start)
    end = stored[-1].stop if stored else data_start
    if end > size:
        raise _truncated(path, f"its header promises {end} bytes in all", size)
    if end < size:
        raise _damaged(path, f"{size - end} bytes stand behind the last tensor, which ends at {end}")
    return stored


def _refuse_holes(path: Path, stored: Sequence[Stored], data_start: int) -> None:
    """Refuse tensors that don't follow each other byte by byte, as the format says and its own reader demands."""
    at, before = data_start, "the header"
    for one in stored:
        if one.start != at:
            how = "overlaps" if one.start < at else "leaves a gap behind"
            raise _damaged(path, f"{one.meta.name} {how} {before}: it begins at byte {one.start} instead of {at}")
        at, before = one.stop, one.meta.name


def _header_bytes(path: Path, file: BinaryIO, size: int) -> bytes:
    length_bytes = file.read(_LENGTH_BYTES)
    if length_bytes == b"version ":  # a git-lfs pointer is a text that begins so
        raise ConfigurationError(
            f"{path} is a git-lfs pointer, not the file itself.", hint=f"fetch it: git -C {path.parent} lfs pull"
        )
    if len(length_bytes) < _LENGTH_BYTES:
        raise _truncated(path, f"the length of its header alone takes {_LENGTH_BYTES} bytes", size)
    length = int.from_bytes(length_bytes, "little")
    if _LENGTH_BYTES + length > size:
        raise _truncated(path, f"its header alone should take {_LENGTH_BYTES + length} bytes", size)
    return file.read(length)


def _entries(path: Path, header: bytes) -> list[tuple[str, _Entry]]:
    try:
        raw = _HEADER.decode(header)
        return [(name, _ENTRY.decode(entry)) for name, entry in raw.items() if name != "__metadata__"]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path} is not a safetensors file: its header is not the JSON it should be ({error}).",
            hint="download the file again, or save the checkpoint again with save_pretrained()",
        ) from error


def _stored(path: Path, data_start: int, name: str, entry: _Entry) -> Stored:
    if entry.dtype not in DTYPES:
        raise ConfigurationError(
            f"{path} holds {name} as {entry.dtype}, which can't be sent; known are {', '.join(sorted(DTYPES))}.",
            hint="convert the checkpoint to one of these dtypes",
        )
    meta = TensorMeta(name, DTYPES[entry.dtype], entry.shape)
    start, stop = entry.data_offsets
    if stop - start != meta.nbytes or start < 0 or min(meta.shape, default=0) < 0:
        raise _damaged(
            path,
            f"{name} ({meta.dtype}, {list(meta.shape)}) takes {meta.nbytes} bytes, but its header gives it "
            f"{start} to {stop}",
        )
    return Stored(meta, data_start + start, data_start + stop)


def _damaged(path: Path, how: str) -> ConfigurationError:
    return ConfigurationError(f"{path} is damaged: {how}.", hint="download or copy the file again")


def _truncated(path: Path, promise: str, size: int) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is truncated, or no safetensors file: {promise}, and the file has {size}.",
        hint="download or copy the file again",
    )
