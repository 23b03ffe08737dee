"""What a trainer says, decoded and checked: the dictionaries that vLLM hands on as ``init_info`` and ``update_info``.

An error here becomes the text of the server's answer, so it says what to do on either side.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import ClassVar, TypeVar

import msgspec
from weightwire.engine_wire import WIRE_VERSION, EngineInit, EngineUpdate
from weightwire.errors import CompatibilityError, ManifestError, StateError
from weightwire.messages import Manifest

DISTRIBUTION = "weightwire-vllm-engine"
TRANSPORTS = ("gloo", "nccl")
"""What this release can join."""

RECEIVE = "receive"
ACTIONS = (RECEIVE,)
"""What this release can do with an update."""

S = TypeVar("S", bound=msgspec.Struct)


class Update(EngineUpdate, frozen=True, kw_only=True):
    """An update as a worker wants it."""

    is_checkpoint_format: ClassVar[bool] = True
    """Read by the workers of vLLM 0.17 to 0.20, where it belongs to the update; later it is said at the start."""

    update_kind: ClassVar[str] = "dense"
    """Read by the workers of vLLM 0.23 and 0.24, of every engine's updates; may go with them."""


def decode_init(fields: Mapping[str, object]) -> EngineInit:
    """Read ``init_info``.

    Raises:
        CompatibilityError: the trainer speaks another wire version or transport, or nothing we know.
        ManifestError: the tensors are not those that the digest names.
    """
    if fields.get("wire_version") != WIRE_VERSION:
        raise CompatibilityError(
            f"The trainer speaks wire version {fields.get('wire_version')!r} of Weightwire's engine; {_ourselves()} in "
            f"this server speaks {WIRE_VERSION}.",
            hint=f"install the same release of weightwire beside the trainer and of {DISTRIBUTION} beside the server",
        )
    init = _convert(fields, EngineInit)
    if init.transport not in TRANSPORTS:
        raise CompatibilityError(
            f"The trainer wants the transport {init.transport!r}; {_ourselves()} in this server joins "
            f"{', '.join(TRANSPORTS)}.",
            hint="connect with data_plane='gloo', or serve with the backend 'nccl'",
        )
    found = Manifest(init.tensors, ()).digest
    if found != init.digest:
        raise ManifestError(f"The manifest's digest is {found}, and not {init.digest} as the trainer says.")
    return init


def decode_update(fields: Mapping[str, object]) -> Update:
    """Read ``update_info``.

    Raises:
        CompatibilityError: it wants something this release can't do, or is nothing we know.
    """
    update = _convert(fields, Update)
    if update.action not in ACTIONS:
        raise CompatibilityError(
            f"The trainer asks for the action {update.action!r}; {_ourselves()} in this server knows "
            f"{', '.join(ACTIONS)}.",
            hint=f"pip install --upgrade {DISTRIBUTION} in the server's environment",
        )
    return update


def check_window(init: EngineInit, update: Update) -> None:
    """Refuse an update that the open channel can't carry.

    Raises:
        StateError: it belongs to another manifest than the channel was opened for.
        ManifestError: its window lies outside of the manifest.
    """
    if update.digest != init.digest:
        raise StateError(
            f"The update is for the manifest {update.digest}; the channel was opened for {init.digest}.",
            hint="open the channel anew: weightwire.connect() does",
        )
    if not 0 <= update.start <= update.stop <= len(init.tensors):
        raise ManifestError(
            f"The update's window is [{update.start}, {update.stop}) of a manifest of {len(init.tensors)} tensors."
        )


def _convert(fields: Mapping[str, object], kind: type[S]) -> S:
    try:
        return msgspec.convert(dict(fields), kind)
    except msgspec.ValidationError as error:
        raise CompatibilityError(
            f"What the trainer sent is nothing that {_ourselves()} can read: {error}.",
            hint="send it with weightwire; the backend of this server is not vLLM's own",
        ) from error


def _ourselves() -> str:
    try:
        return f"{DISTRIBUTION} {version(DISTRIBUTION)}"
    except PackageNotFoundError:  # run from a source tree that was never installed
        return DISTRIBUTION
