"""One worker's end of the channel: joins the sender's group, and feeds what arrives to a loader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from weightwire.deadlines import Deadline
from weightwire.engine_wire import EngineInit
from weightwire.errors import ManifestError
from weightwire.messages import PackGeometry
from weightwire_torch.gloo_group import GlooGroup
from weightwire_torch.receiver import receive
from weightwire_torch.ring import Ring

from weightwire_vllm_engine import wire

NUM_BUFFERS = 2
"""Packs received at once: one arrives while the other is loaded. The framing does not depend on it."""

Batch = list[tuple[str, torch.Tensor]]
Load = Callable[[Batch], object]
"""The model's loader: takes names and tensors."""


class Channel:
    """An open channel. The sender is rank 0 of its group."""

    def __init__(self, init: EngineInit, group: GlooGroup) -> None:
        """Reserve the memory that receiving takes.

        Args:
            init: what the trainer said of the channel.
            group: the group, not joined yet.
        """
        self._init = init
        self._group = group
        self._geometry = PackGeometry(packed=init.packed, buffer_bytes=init.buffer_bytes, num_buffers=NUM_BUFFERS)
        self._ring = Ring.fitting(init.tensors, self._geometry)

    @classmethod
    def join(cls, init: EngineInit, rank: int) -> Self:
        """Enter the sender's group, together with all other workers.

        Args:
            init: what the trainer said of the channel.
            rank: this worker's place in the group, 1 or more.

        Raises:
            ChannelError: the sender can't be reached from here.
            DeadlineExceeded: a member did not come in time.
        """
        group = GlooGroup.connect(init.address, init.port, rank=rank, world_size=init.world_size, timeout=init.timeout)
        try:
            channel = cls(init, group)
            group.join(Deadline.after(init.timeout))
        except BaseException:
            group.abort()
            raise
        return channel

    def receive(self, update: wire.Update, load: Load) -> None:
        """Receive one window, and load it as it arrives.

        A loader that raises is not called again, but the window is received to its end: the sender and the other
        workers are inside the same collectives, and the channel stays in step.

        Raises:
            StateError, ManifestError: the update does not fit the channel; nothing was received.
            ManifestError: the loader raised; says at which tensors.
            ChannelError, DeadlineExceeded: the sender is gone; the channel is closed.
        """
        wire.check_window(self._init, update)
        failure: ManifestError | None = None
        tensors = self._init.tensors[update.start : update.stop]
        try:
            for batch in receive(self._group, tensors, geometry=self._geometry, ring=self._ring):
                failure = failure or _loaded(batch, load)
        except BaseException:
            self._group.abort()
            raise
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Leave the group. Idempotent."""
        self._group.close()


def _loaded(batch: Batch, load: Load) -> ManifestError | None:
    """Load a batch; return what went wrong."""
    try:
        # Copies: vLLM's layer-wise reload keeps what it is given until the layer is complete, and the next packs are
        # received into the same memory meanwhile.
        load([(name, tensor.clone()) for name, tensor in batch])
    except Exception as error:  # noqa: BLE001 - raised when the window is over
        names = " to ".join(dict.fromkeys(repr(name) for name, _ in (batch[0], batch[-1])))
        failure = ManifestError(
            f"The model's loader failed at {names}: {type(error).__name__}: {error}",
            hint="the names and shapes must be those of the checkpoint that the server was started from",
        )
        failure.__cause__ = error
        return failure
    return None
