"""What a reference engine tells a test, besides what vLLM offers. Imports no torch."""

from __future__ import annotations

import msgspec


class Holding(msgspec.Struct, frozen=True):
    """What a worker holds.

    Attributes:
        fingerprint: of all its weights, as :func:`weightwire_testing.model.fingerprint` makes it.
        garbage: run-time modules of which some part was never sent.
        open: an update is open, or was given up: the next forward pass kills the engine.
    """

    fingerprint: str
    garbage: tuple[str, ...]
    open: bool


class Called(msgspec.Struct, frozen=True):
    """A call that the engine was made; ``status`` is 0 where no reply was sent."""

    method: str
    path: str
    status: int


class Ready(msgspec.Struct, frozen=True):
    """The first line of the process's output."""

    port: int
    url: str
    pid: int
