"""The wire between Weightwire and its own engine plugin in the server (distribution weightwire-vllm-engine).

It travels inside vLLM's ``init_info`` and ``update_info``. Names and shapes travel once, when the channel is opened;
an update names a window of them. Both sides refuse a wire version they do not know.
"""

from __future__ import annotations

import msgspec

from weightwire.messages import TensorMeta

WIRE_VERSION = 1
"""Raised when a field changes its meaning; both sides carry it, so that an old one refuses a new one in words.

A new field with a default does not raise it: one that does not know NCCL refuses that transport in words."""

BACKEND = "weightwire"
"""The name our engine is registered under in vLLM, from 0.22 on."""

MARK = "VLLM_WEIGHTWIRE_ENGINE"
"""The variable that our engine declares to ``vllm.envs`` with its own version, so that ``/server_info`` shows it: up
to 0.21 the backend's name can't tell it from vLLM's ``ipc``."""


class EngineInit(msgspec.Struct, frozen=True, kw_only=True):
    """``init_info``: how a worker joins the channel.

    Attributes:
        wire_version: :data:`WIRE_VERSION` of the client.
        transport: ``"gloo"`` or ``"nccl"``.
        address: where the sender's key-value store listens.
        port: its port.
        rank_offset: the rank of this engine's first worker.
        world_size: members of the group.
        timeout: seconds a worker waits for the store and in a collective.
        packed: several tensors per collective.
        buffer_bytes: the pack rule's size.
        tensors: the manifest, in order.
        digest: its digest.
        unique_id: of the communicator, over NCCL; the address and the port are then those of a socket that the sender
            holds open as long as it lives, and port 0 says that there is none.
        nccl_version: the sender's release of NCCL.
    """

    wire_version: int
    transport: str
    address: str
    port: int
    rank_offset: int
    world_size: int
    timeout: float
    packed: bool
    buffer_bytes: int
    tensors: tuple[TensorMeta, ...]
    digest: str
    unique_id: bytes = b""
    nccl_version: str = ""


class EngineUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """``update_info``: receive ``tensors[start:stop]`` of the manifest that *digest* names.

    Attributes:
        action: ``"receive"`` loads into the live model; ``"stage"``, ``"commit"`` and ``"abort"`` are the three
            calls of a staged round.
        round_id: the round it belongs to.
        start: first tensor.
        stop: one past the last.
        digest: of the manifest given at init.
    """

    action: str
    round_id: str
    start: int
    stop: int
    digest: str
