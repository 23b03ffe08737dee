"""Reference engines that are used again: a process takes seconds to start, a reset milliseconds."""

from __future__ import annotations

from weightwire.errors import ConfigurationError

from weightwire_testing.reference.launcher import ReferenceEngine
from weightwire_testing.reference.settings import EngineSettings


class EnginePool:
    """Lends engines, and starts no more processes than are lent at once."""

    def __init__(self) -> None:
        """Start none."""
        self._idle: list[ReferenceEngine] = []
        self._lent: list[ReferenceEngine] = []

    def lend(self, settings: EngineSettings) -> ReferenceEngine:
        """An engine of this set-up, fresh as from its start; give it back with :meth:`give_back`.

        Raises:
            ConfigurationError: the settings are wrong.
            DeadlineExceeded: a process did not start in time.
        """
        while self._idle:
            engine = self._idle.pop()
            if engine.alive:
                return self._reset(engine, settings)
            engine.stop()
        engine = ReferenceEngine(settings).start()
        self._lent.append(engine)
        return engine

    def give_back(self, engine: ReferenceEngine) -> None:
        """Take an engine back, in whatever state it is; one that is dead is dropped."""
        self._lent.remove(engine)
        if engine.alive:
            self._idle.append(engine)
        else:
            engine.stop()

    def close(self) -> None:
        """End every process."""
        for engine in self._idle + self._lent:
            engine.stop()
        self._idle, self._lent = [], []

    def _reset(self, engine: ReferenceEngine, settings: EngineSettings) -> ReferenceEngine:
        try:
            engine.reset(settings)
        except ConfigurationError:
            self._idle.append(engine)
            raise
        self._lent.append(engine)
        return engine
