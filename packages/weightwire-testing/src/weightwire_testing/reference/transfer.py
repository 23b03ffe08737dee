"""What a worker's weight-transfer engine is, stock or ours, and the collectives that both stand on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import msgspec

from weightwire_testing.faults import Fault, FaultPlan, Kind, Phase, When
from weightwire_testing.reference.release import Release
from weightwire_testing.reference.reload import Reload

DIED_ON_PURPOSE = 9
"""Exit status of a process that a fault told to die."""


@dataclass(frozen=True, slots=True)
class Place:
    """What an engine knows of where it runs.

    Attributes:
        release: the release it behaves as.
        index: the worker's index within the server, over all data-parallel ranks.
        timeout: of the store and of each collective; vLLM's own waits for ever in a collective.
        faults: what its collectives are to suffer.
        hang_on_lost_peer: sit in the collective for ever when the sender is gone, as NCCL does.
    """

    release: Release
    index: int
    timeout: timedelta
    faults: FaultPlan
    hang_on_lost_peer: bool = False


class TransferEngine(Protocol):
    """One worker's receiving end. Called on the worker's thread."""

    opens_reload: bool
    """Whether it begins the reload itself, with the first byte, instead of the worker at start."""

    def init_transfer(self, init_info: msgspec.Raw) -> None:
        """Join the sender's group; a group joined before is left alone, as vLLM does."""

    def update(self, update_info: msgspec.Raw, reload: Reload, *, checkpoint_format: bool) -> None:
        """Receive what *update_info* names, and load it."""

    def shutdown(self) -> None:
        """Leave the group. Idempotent."""


def collective(place: Place, receive: Callable[[], None]) -> None:
    """Take part in one collective, or suffer the fault of :attr:`~weightwire_testing.faults.Phase.RECEIVE`.

    Args:
        place: whose faults.
        receive: returns when the bytes are there.
    """
    fault = place.faults.next(Phase.RECEIVE)
    _suffer(fault, When.BEFORE)
    try:
        receive()
    except RuntimeError:
        if place.hang_on_lost_peer:
            threading.Event().wait()  # for ever, on purpose: an NCCL kernel has no time-out either
        raise
    _suffer(fault, When.AFTER)


def _suffer(fault: Fault | None, when: When) -> None:
    if fault is None or fault.when is not when:
        return
    if fault.kind is Kind.DIE:
        os._exit(DIED_ON_PURPOSE)
    time.sleep(fault.seconds)
    if fault.kind is Kind.REFUSE:
        raise RuntimeError(fault.text)
