"""Every error Weightwire raises, drawn as one tree.

::

    WeightwireError
    ├── PluginError                a plugin is missing, broken, or registered twice
    ├── ConfigurationError         an option, an argument or a checkpoint is wrong
    ├── CompatibilityError         versions or set-ups that do not work together
    ├── ControlError               a control call failed
    │   ├── EngineUnreachable      nothing answers at that address, or the connection was cut
    │   ├── EngineRefused          the engine answered, and said no
    │   ├── GarbledReply           the engine answered, but not in its own protocol
    │   └── DeadlineExceeded       a wait ran out of time
    ├── ChannelError               the data plane could not be opened, or broke in mid-stream
    ├── ManifestError              the tensors to be sent are not what the engine expects
    ├── SourceFailed               the weight source raised while tensors were gathered
    ├── StateError                 the call does not fit the state of the session or the engine
    └── UpdateFailed               a round failed; says what state each engine is in

Each carries where it happened (phase, rank, engine), the engine's own words, and a hint: what to type or to set.
All of them can be pickled, so that a worker process can hand one to its parent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class Where:
    """Where an error happened.

    Attributes:
        phase: the phase of the round or of the set-up, such as ``"transfer"``; empty where there is none.
        rank: the trainer rank that raised; -1 where ranks play no part.
        engine: the engine's URL; empty where no engine is concerned.
    """

    phase: str = ""
    rank: int = -1
    engine: str = ""

    def __str__(self) -> str:
        """Read as a trailing clause: ``phase transfer, rank 0, http://…``."""
        parts = [f"phase {self.phase}"] if self.phase else []
        parts += [f"rank {self.rank}"] if self.rank >= 0 else []
        parts += [self.engine] if self.engine else []
        return ", ".join(parts)


class WeightwireError(Exception):
    """Base of every error that Weightwire raises on purpose."""

    def __init__(self, message: str, *, hint: str = "", server_text: str = "", where: Where | None = None) -> None:
        """Keep the parts apart, so that a program can read them and a person gets them in one text.

        Args:
            message: what was found and what was expected, one or two sentences.
            hint: what to type or to set; empty where nothing can be advised.
            server_text: the engine's own words, unshortened.
            where: the place; filled in later by :meth:`at` when the raiser does not know it.
        """
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.server_text = server_text
        self.where = where or Where()

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by attributes: the default would call the class with the message alone."""
        return _rebuild, (type(self), self.message, self.__dict__)

    def __str__(self) -> str:
        """Give the whole story: message, place, the server's words, the hint."""
        place = str(self.where)
        lines = [self.message + (f" [{place}]" if place else "")]
        lines += [f"  the engine said: {self.server_text}"] if self.server_text else []
        lines += [f"  try: {self.hint}"] if self.hint else []
        return "\n".join(lines)

    def at(self, *, phase: str = "", rank: int = -1, engine: str = "") -> Self:
        """Fill in what is still unknown about the place, and return the same error.

        What the raiser already said is kept: the inner place is the more exact one.
        """
        known = self.where
        self.where = replace(
            known,
            phase=known.phase or phase,
            rank=known.rank if known.rank >= 0 else rank,
            engine=known.engine or engine,
        )
        return self


def _rebuild(cls: type[WeightwireError], message: str, state: dict[str, object]) -> WeightwireError:
    error = cls.__new__(cls, message)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class PluginError(WeightwireError):
    """A plugin is missing, can't be loaded, is registered twice, or broke its contract."""


class ConfigurationError(WeightwireError):
    """An option, an argument or a checkpoint is wrong."""


class CompatibilityError(WeightwireError):
    """Versions or set-ups that do not work together."""


class ControlError(WeightwireError):
    """A control call failed."""


class EngineUnreachable(ControlError):
    """Nothing answers at that address, or the connection was cut before the answer was whole."""


class EngineRefused(ControlError):
    """The engine answered, and said no.

    Attributes:
        status: the HTTP status code.
    """

    status: int = 0


class GarbledReply(ControlError):
    """The engine answered 200, but not in its own protocol."""


class DeadlineExceeded(ControlError):
    """A wait ran out of time."""


class ChannelError(WeightwireError):
    """The data plane could not be opened, or broke in mid-stream."""


class ManifestError(WeightwireError):
    """The tensors to be sent are not what the engine expects."""


class SourceFailed(WeightwireError):
    """The weight source raised while tensors were gathered.

    The stream was completed with filler bytes, so every receiver left its collective and the channel is still in
    step; what the engine received is worthless.
    """


class StateError(WeightwireError):
    """The call does not fit the state of the session or of the engine."""


class UpdateFailed(WeightwireError):
    """A round failed.

    Attributes:
        engine_states: the state each engine was left in, by URL (see :class:`weightwire.states.EngineState`).
    """

    engine_states: dict[str, str]

    def __init__(self, message: str, *, hint: str = "", server_text: str = "", where: Where | None = None) -> None:
        """As the base; ``engine_states`` starts empty and is filled by the raiser."""
        super().__init__(message, hint=hint, server_text=server_text, where=where)
        self.engine_states = {}
