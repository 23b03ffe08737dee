"""``init_info`` and ``update_info`` of vLLM's own engine, as strict as its dataclasses: an unknown key is an error.

Which keys there are depends on the release; the error's words are those that a dataclass of the same name gives.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses

import msgspec
from weightwire.messages import PackGeometry, TensorMeta

from weightwire_testing.reference.release import Release

_DEFAULT_BUFFER = 1024**3
REQUIRED = dataclasses.MISSING
Fields = dict[str, object]
"""Field names and their defaults; :data:`REQUIRED` where there is none."""

_ADDRESS: Fields = {"master_address": REQUIRED, "master_port": REQUIRED}
_PLACE: Fields = {"rank_offset": REQUIRED, "world_size": REQUIRED}
_PACKING: Fields = {"packed": False, "packed_buffer_size_bytes": _DEFAULT_BUFFER, "packed_num_buffers": 2}
_TENSORS: Fields = {"names": REQUIRED, "dtype_names": REQUIRED, "shapes": REQUIRED}


class StockInit(msgspec.Struct, frozen=True):
    """A parsed ``init_info``."""

    rank_offset: int
    world_size: int
    master_address: str | None = None
    master_port: int | None = None
    nccl_unique_id_b64: str | None = None
    packed: bool = False
    packed_buffer_size_bytes: int = _DEFAULT_BUFFER
    packed_num_buffers: int = 2

    @property
    def geometry(self) -> PackGeometry:
        """How tensors are put together, where this is settled at init."""
        return PackGeometry(
            packed=self.packed, buffer_bytes=self.packed_buffer_size_bytes, num_buffers=self.packed_num_buffers
        )

    @property
    def unique_id(self) -> bytes | None:
        """The id given in the call; None where a store is named instead.

        Raises:
            ValueError: it is not standard base64.
        """
        if self.nccl_unique_id_b64 is None:
            return None
        try:
            return base64.b64decode(self.nccl_unique_id_b64, validate=True)
        except binascii.Error as error:
            raise ValueError("NCCLWeightTransferInitInfo: nccl_unique_id_b64 is not valid standard base64") from error


class StockUpdate(msgspec.Struct, frozen=True):
    """A parsed ``update_info``."""

    names: tuple[str, ...]
    dtype_names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    packed: bool = False
    packed_buffer_size_bytes: int = _DEFAULT_BUFFER
    packed_num_buffers: int = 2
    is_checkpoint_format: bool = True
    update_kind: str = "dense"
    num_updates_list: list[int] | None = None

    @property
    def geometry(self) -> PackGeometry:
        """How tensors are put together, where this is said with every update."""
        return PackGeometry(
            packed=self.packed, buffer_bytes=self.packed_buffer_size_bytes, num_buffers=self.packed_num_buffers
        )

    @property
    def tensors(self) -> tuple[TensorMeta, ...]:
        """What is to be received, in order."""
        rows = zip(self.names, self.dtype_names, self.shapes, strict=True)
        return tuple(TensorMeta(name, dtype, shape) for name, dtype, shape in rows)


def init_fields(release: Release) -> Fields:
    """The fields of ``init_info``."""
    fields = _ADDRESS | _PLACE
    if release.packing_in_init:
        fields |= _PACKING
    if release.since(30):
        fields |= {"master_address": None, "master_port": None, "nccl_unique_id_b64": None}
    return fields


def update_fields(release: Release) -> Fields:
    """The fields of ``update_info``."""
    fields: Fields = dict(_TENSORS)
    if release.since(33):
        fields = dict.fromkeys(_TENSORS, ())
    if not release.packing_in_init:
        fields |= _PACKING
    if release.two_call:
        fields |= {"is_checkpoint_format": True}
    if release.minor in {(0, 23), (0, 24)}:
        fields |= {"update_kind": "dense", "num_updates_list": None}
    return fields


def parse_init(raw: msgspec.Raw, release: Release) -> StockInit:
    """Read ``init_info``.

    Raises:
        ValueError: a key is unknown or missing, or a value makes no sense.
    """
    given = _arguments("init_info", "NCCLWeightTransferInitInfo", init_fields(release), raw)
    init = msgspec.convert(given, StockInit, strict=False)
    addressed = (init.master_address is not None) + (init.master_port is not None)
    if init.nccl_unique_id_b64 is not None and addressed:
        raise ValueError("NCCLWeightTransferInitInfo: pass nccl_unique_id_b64 OR master_address/master_port, not both")
    if init.nccl_unique_id_b64 is None and addressed < len(_ADDRESS):
        raise ValueError(
            "NCCLWeightTransferInitInfo: need nccl_unique_id_b64, or both master_address and master_port "
            f"(got master_address={init.master_address!r}, master_port={init.master_port!r})"
        )
    return init


def parse_update(raw: msgspec.Raw, release: Release) -> StockUpdate:
    """Read ``update_info``.

    Raises:
        ValueError: a key is unknown or missing, or the lists differ in length.
    """
    given = _arguments("update_info", "NCCLWeightTransferUpdateInfo", update_fields(release), raw)
    update = msgspec.convert(given, StockUpdate, strict=False)
    for name, values in (("dtype_names", update.dtype_names), ("shapes", update.shapes)):
        if len(values) != len(update.names):
            raise ValueError(
                f"`{name}` should be of the same size as `names`: got {len(values)} and {len(update.names)}"
            )
    if update.update_kind != "dense":
        raise ValueError("the reference engine receives dense updates only")
    return update


def _arguments(what: str, owner: str, fields: Fields, raw: msgspec.Raw) -> dict[str, object]:
    """The values given for *fields*, checked by calling a dataclass of the name that vLLM's has."""
    rows = [
        (name, object) if default is REQUIRED else (name, object, dataclasses.field(default=default))
        for name, default in fields.items()
    ]
    strict = dataclasses.make_dataclass(owner, rows, kw_only=True)
    given = msgspec.json.decode(raw)
    try:
        return dict(vars(strict(**given)))
    except TypeError as error:
        raise ValueError(f"Invalid {what} for NCCLWeightTransferEngine: {error}") from error
