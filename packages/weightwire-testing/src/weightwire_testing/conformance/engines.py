"""The engine under a control plane's test: what the suite asks of it, and the reference engine in that part."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar, Protocol

import msgspec

from weightwire_testing.faults import Fault
from weightwire_testing.model import TinyLlama, save_checkpoint
from weightwire_testing.reference import Called, EngineSettings, ReferenceEngine
from weightwire_testing.reference.pool import EnginePool


class LiveEngine(Protocol):
    """A running engine, fresh: it serves, nothing is open. ``ReferenceEngine`` is one."""

    @property
    def url(self) -> str:
        """Where it answers."""

    def fingerprint(self) -> str:
        """Of the weights that it serves, as :func:`weightwire_testing.model.fingerprint` makes it."""

    def calls(self) -> Sequence[Called]:
        """The calls it was made since it was made fresh."""

    def set_faults(self, *faults: Fault | str) -> None:
        """What it is to do wrong from now on (:mod:`weightwire_testing.faults`)."""


OLD_SEED = 1
"""Seed of the weights that a fresh engine serves."""


class OnReferenceEngine:
    """Mix into a suite: the engine under test is the reference engine.

    Attributes:
        settings: its set-up; the checkpoint is filled in.
    """

    settings: ClassVar[EngineSettings] = EngineSettings()
    _reference: ReferenceEngine | None = None

    def make_engine(self) -> LiveEngine:
        """A fresh engine; the one of an earlier test may become it."""
        self.release_engine()
        wanted = msgspec.structs.replace(self.settings, checkpoint=str(_checkpoint()))
        self._reference = _pool().lend(wanted)
        return self._reference

    def release_engine(self) -> None:
        """Give it back, in whatever state it is."""
        reference, self._reference = self._reference, None
        if reference is not None:
            _pool().give_back(reference)


@cache
def _pool() -> EnginePool:
    """One for the process; its engines end with it."""
    pool = EnginePool()
    atexit.register(pool.close)
    return pool


@cache
def _checkpoint() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="weightwire-conformance-")
    atexit.register(folder.cleanup)
    return save_checkpoint(TinyLlama(seed=OLD_SEED), Path(folder.name) / "checkpoint")
