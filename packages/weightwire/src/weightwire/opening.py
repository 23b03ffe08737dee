"""What comes before a round, on the sender: who the engines are, what they expect, and a channel to them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from weightwire import dtypes, expected, preflight
from weightwire.backend import SenderBackend
from weightwire.deadlines import Deadline
from weightwire.errors import ControlError, WeightwireError
from weightwire.gathering import agreed_digest
from weightwire.messages import ChannelInfo, EngineInfo
from weightwire.negotiate import mixed_backends
from weightwire.standing import Common
from weightwire.states import EngineState, SessionState
from weightwire.tensors import Manifest
from weightwire.tracebacks import let_go

log = logging.getLogger(__name__)

_NOBODY_KNOWS = (
    "The model that %s serves is not on this machine, so the names and shapes that are pushed can't be checked before "
    "they reach the engine. Give its checkpoint, or one like it, as the option `expected` (WEIGHTWIRE_EXPECTED)."
)

LOOK_SHARE = 0.25
"""The part of a push's time that the engines may take to say how they stand."""


class Opening:
    """Brings a session to where a round can begin, from wherever it stands.

    Attributes:
        expected: what the engines expect to be sent; None until that is known.
        digest: what the other ranks' must equal (see :func:`~weightwire.gathering.agreed_digest`).
    """

    def __init__(self, backend: SenderBackend, common: Common) -> None:
        """Connect nothing yet."""
        self.expected: expected.Expected | None = None
        self.digest = ""
        self._backend = backend
        self._lifecycle = common.lifecycle
        self._standing = common.standing
        self._source = common.source
        self._options = common.options
        self._channel: ChannelInfo | None = None

    def connect(self, deadline: Deadline) -> None:
        """Find out what the engines are and how they stand."""
        first = self._standing.state is SessionState.NEW
        with during("connect"):
            infos = self._lifecycle.connect(deadline)
        self._standing.become(SessionState.CONNECTED)
        found = (expected.find(info, self._options) for info in infos)
        self.expected = next(filter(None, found), self.expected)
        if first and self.expected is None:
            log.warning(_NOBODY_KNOWS, ", ".join(info.url for info in infos))

    def look(self, deadline: Deadline) -> None:
        """Ask the engines whether they are as this session left them, and recover where they are not.

        Torn engines are flushed, which is enough while the channel is in step. Anything else that is amiss (a lost
        engine, a restarted one, one that another client pushed to, a broken channel) is met by starting over.
        """
        if self._sound() and self._all_as_left(deadline):
            self._mend(deadline)
        else:
            self.recover(deadline)

    def recover(self, deadline: Deadline, *, readmit: bool = False) -> None:
        """Ask the engines anew, flush the torn, and give the channel up; :meth:`channel` opens another.

        Args:
            deadline: for all of it.
            readmit: ask those that were lost, too.
        """
        self._standing.become(SessionState.BROKEN)
        self._channel = None
        self._backend.engines.readmit = readmit
        self.connect(deadline)
        self._mend(deadline)
        self._lifecycle.close_channel(deadline)

    def admit(self, url: str, deadline: Deadline) -> None:
        """Take one more engine in, and give the channel up: its group is too small now.

        Raises:
            StateError: there is one with that address, or the engine can't take an update.
            WeightwireError: it can't be reached, or not fed with what the others are fed; nothing was changed.
        """
        with during("connect"):
            self._backend.engines.add(url, deadline, fit=self._refuse_unlike)
        self.give_up_channel(deadline)

    def manifest(self) -> Manifest:
        """What will be sent, checked against what the engines expect."""
        with during("preflight"):
            return self._checked(self._backend.engines.infos())

    def _checked(self, infos: Sequence[EngineInfo]) -> Manifest:
        source = self._source.manifest()
        self.digest = agreed_digest(self._source, source)
        manifest = dtypes.on_the_wire(source, infos, expected=self.expected, options=self._options)
        preflight.check(manifest, infos, expected=self.expected, options=self._options)
        return manifest

    def _refuse_unlike(self, info: EngineInfo) -> None:
        together = (*self._backend.engines.infos(), info)
        backends = sorted({each.backend for each in together})
        if len(backends) > 1:
            raise mixed_backends(backends)
        self._checked(together)

    def channel(self, manifest: Manifest, deadline: Deadline) -> ChannelInfo:
        """The open channel, if it fits *manifest*; otherwise a new one."""
        if self._channel is not None and self._channel.digest == manifest.digest:
            return self._channel
        with during("open"):
            if self._channel is not None:
                self.give_up_channel(deadline)
            self._channel = self._lifecycle.open_channel(self._backend.engines.infos(), manifest, deadline)
        self._standing.become(SessionState.READY)
        return self._channel

    def give_up_channel(self, deadline: Deadline) -> None:
        """Leave the channel: it does not fit any more."""
        self._channel = None
        self._lifecycle.close_channel(deadline)
        self._standing.become(SessionState.BROKEN)

    def _mend(self, deadline: Deadline) -> None:
        with during("recover"):
            if any(engine.state is not EngineState.WHOLE for engine in self._backend.engines):
                self._lifecycle.recover(deadline)

    def _sound(self) -> bool:
        """Whether, as far as this side knows, nothing is amiss that starting over would mend."""
        lost = any(engine.state is EngineState.LOST for engine in self._backend.engines)
        ready = self._standing.state is SessionState.READY and self._channel is not None
        return ready and self._backend.channel_open and not lost

    def _all_as_left(self, deadline: Deadline) -> bool:
        look = deadline.at_most(LOOK_SHARE * deadline.remaining())
        try:
            return all(self._backend.engines.all(lambda engine: engine.as_left(look), "asking the engines", look))
        except ControlError:
            return False


@contextmanager
def during(phase: str) -> Iterator[None]:
    """Name the phase in what is raised meanwhile."""
    try:
        yield
    except WeightwireError as error:
        error.at(phase=phase, rank=0)
        let_go(error)
        raise
