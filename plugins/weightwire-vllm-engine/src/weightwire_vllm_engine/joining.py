"""Joining the sender's group, over the transport that the trainer chose."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

import torch
from weightwire.deadlines import Deadline
from weightwire.engine_wire import EngineInit
from weightwire.errors import ChannelError, CompatibilityError
from weightwire_torch import nccl_plane, nccl_version
from weightwire_torch.broadcasting import Flight
from weightwire_torch.gloo_group import GlooGroup
from weightwire_torch.lifeline import Tether
from weightwire_torch.nccl_group import Transport
from weightwire_torch.nccl_plane import OpenTransport
from weightwire_torch.nccl_receiver import NcclReceiver

LIBRARY_VARIABLES = ("VLLM_NCCL_SO_PATH", "WEIGHTWIRE_NCCL_LIBRARY")
"""The first that is set names the libnccl to load instead of torch's: vLLM's own variable, and the trainer's."""


class Member(Protocol):
    """A member of a group that receives."""

    def begin(self, flat: torch.Tensor) -> Flight:
        """Begin to receive the next broadcast of rank 0 into *flat*."""

    def abort(self) -> None:
        """Leave at once; idempotent, never raises, never blocks."""

    def close(self) -> None:
        """Leave, and wait a few seconds until that is done; idempotent, never raises."""


Prepare = Callable[[torch.device], None]
"""Called with the device where packs will arrive, before anybody is waited for: allocates what receiving takes."""


def join(init: EngineInit, rank: int, prepare: Prepare, *, transport: OpenTransport | None = None) -> Member:
    """Enter the sender's group, together with all other workers.

    Args:
        init: what the trainer said of the channel.
        rank: this worker's place in the group, 1 or more.
        prepare: makes ready; a failure of it must not leave the others waiting.
        transport: makes what NCCL's bytes travel through; the usual one unless a test gives another.

    Raises:
        CompatibilityError: the sender runs another release of NCCL.
        ChannelError: the sender can't be reached from here, or NCCL can't be used.
        DeadlineExceeded: a member did not come in time.
    """
    if init.transport == "nccl":
        opened = (transport or nccl_plane.open_transport)(_library())
        return _over_nccl(init, rank, prepare, opened=opened)
    group = GlooGroup.connect(init.address, init.port, rank=rank, world_size=init.world_size, timeout=init.timeout)
    try:
        prepare(torch.device("cpu"))
        group.join(Deadline.after(init.timeout))
    except BaseException:
        group.abort()
        raise
    return group


def _over_nccl(init: EngineInit, rank: int, prepare: Prepare, *, opened: Transport) -> NcclReceiver:
    _refuse_another_release(init.nccl_version, opened.nccl.version)
    member = NcclReceiver(opened, init.unique_id, rank=rank, world_size=init.world_size)
    try:
        if init.port:
            member.tie(Tether.tied_to(init.address, init.port, timeout=init.timeout))
        prepare(member.device)
        member.join(init.timeout)
    except torch.OutOfMemoryError as error:
        member.abort()
        raise ChannelError(
            f"This worker's GPU has no room for the packs: {error}",
            hint="lower the trainer's option bucket_bytes, or the server's --gpu-memory-utilization",
        ) from error
    except BaseException:
        member.abort()
        raise
    return member


def _library() -> str:
    return next(filter(None, map(os.environ.get, LIBRARY_VARIABLES)), "")


def _refuse_another_release(theirs: str, ours: str) -> None:
    """Two releases of NCCL would wait for each other for ever, without an error.

    Raises:
        CompatibilityError: they are two.
    """
    if theirs and nccl_version.numbers(theirs) != nccl_version.numbers(ours):
        raise CompatibilityError(
            f"The trainer runs NCCL {theirs} and this worker {ours}; in one group they would wait for each other for "
            "ever.",
            hint=nccl_version.cures(theirs, ours, cuda=torch.version.cuda or "12"),
        )
