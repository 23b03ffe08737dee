"""How a reference engine is set up. Imports no torch, so that a launcher is quick."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from weightwire_testing.faults import Fault
from weightwire_testing.reference.release import Release


class Backend(StrEnum):
    """The weight-transfer engine that is configured."""

    NCCL = "nccl"
    """vLLM's own, with gloo in NCCL's place."""
    WEIGHTWIRE = "weightwire"
    """Ours."""
    NONE = "none"
    """None: the server was started without ``--weight-transfer-config``."""


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One set-up.

    Attributes:
        checkpoint: directory of a checkpoint that :func:`~weightwire_testing.model.save_checkpoint` wrote. A process
            needs one; the pytest fixture fills in a small one.
        version: the vLLM release it behaves as.
        backend: the weight-transfer engine.
        workers: workers of each data-parallel rank (TP × PP); every one holds a whole model.
        data_parallel: data-parallel ranks, each with a model of its own to ask (``X-data-parallel-rank``).
        dev_mode: as ``VLLM_SERVER_DEV_MODE``: without it there are no routes for weights.
        timeout: seconds a worker waits for the store, for its group, and in a collective.
        hang_on_lost_peer: wait for ever in a collective whose sender is gone, as NCCL does; gloo tells.
        served_name: the model's name in ``/v1/models``.
        death_delay: seconds between the engine's death and the process's.
        reported: what ``/server_info`` says besides, or instead, by section of ``vllm_config``; set by a reset alone.
        faults: what goes wrong.
    """

    checkpoint: str = ""
    version: str = "0.32.0"
    backend: Backend = Backend.WEIGHTWIRE
    workers: int = 1
    data_parallel: int = 1
    dev_mode: bool = True
    timeout: float = 30.0
    hang_on_lost_peer: bool = False
    served_name: str = "model"
    death_delay: float = 0.5
    reported: dict[str, dict[str, str | int | bool | None]] = {}
    faults: tuple[Fault, ...] = ()

    @property
    def release(self) -> Release:
        """The release, read.

        Raises:
            ConfigurationError: the version is none, or is too old.
        """
        return Release.of(self.version)

    @property
    def world_size(self) -> int:
        """How many workers join a channel."""
        return self.workers * self.data_parallel
