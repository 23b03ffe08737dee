"""A session: from ``connect()`` to ``close()``, round after round, the same calls on every trainer rank."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Literal, Self

from weightwire.agreement import Agreement
from weightwire.backend import SenderBackend
from weightwire.deadlines import Deadline
from weightwire.errors import StateError
from weightwire.follower import FollowerBackend
from weightwire.following import Follower
from weightwire.leading import Leader
from weightwire.lifecycle import Lifecycle
from weightwire.messages import EngineInfo, Receipt
from weightwire.options import Options
from weightwire.orders import Order
from weightwire.planes import WeightSource
from weightwire.rounds import Ending
from weightwire.standing import Common, Standing
from weightwire.states import EngineState, SessionState
from weightwire.turns import Turns, in_turn

log = logging.getLogger(__name__)
CLOSE_SECONDS = 10.0
"""The longest that closing may take."""


class Session:
    """Moves one model's weights into a set of engines. Made by :func:`weightwire.connect`.

    It is for one thread at a time: a call from another one, while a call is under way, raises ``StateError`` and does
    nothing.
    """

    def __init__(
        self,
        backend: SenderBackend | FollowerBackend,
        source: WeightSource,
        options: Options,
        *,
        plugins: Sequence[object],
    ) -> None:
        """Connect nothing yet: :meth:`open` does."""
        lifecycle = Lifecycle(backend, plugins)
        self._standing = Standing(lifecycle, lambda: self.engine_states)
        self._options = options
        common = Common(lifecycle, self._standing, Agreement.of_the_next_session(source.ranks), source, options)
        self._part = _part(backend, common)
        self._ending: Ending | None = None
        self.turns = Turns()

    def __enter__(self) -> Self:
        """Use the session in a ``with`` block; it is closed at the end."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    @property
    def state(self) -> SessionState:
        """What the session may do next."""
        return self._standing.state

    @property
    def engines(self) -> tuple[EngineInfo, ...]:
        """What is known of the engines that pushes go to; empty on ranks other than the sender."""
        return self._part.engines

    @property
    def engine_states(self) -> dict[str, EngineState]:
        """The state each engine is in, by URL, the lost ones included; empty on ranks other than the sender."""
        return self._part.engine_states()

    @in_turn
    def open(self) -> None:
        """Probe the engines, check what will be sent against what they expect, and open the channel.

        Raises:
            WeightwireError: what is wrong; nothing was changed in any engine.
        """
        self._part.open(self._deadline())

    @in_turn
    def push(
        self,
        version: str | int,
        *,
        pause: Literal["keep", "wait", "abort"] = "keep",
        cache: Literal["reset", "keep"] = "reset",
        wait: bool = True,
    ) -> Receipt:
        """Bring the model's weights, as they are now, into every engine. Call it on every rank.

        It returns or raises within the option ``timeout``. Engines that are torn are flushed first, and a channel that
        is lost is opened anew; an engine that is lost is left out, and named in the log and in :attr:`engine_states`.

        Args:
            version: what the engines should call these weights: a whole number, or a text of up to 200 printable
                characters; it may go back (a resumed trainer).
            pause: what happens to requests in flight: continued with the new weights (``keep``), finished first
                (``wait``), or ended (``abort``).
            cache: drop the KV and prefix caches (``reset``), or keep what older weights computed (``keep``).
            wait: False returns once the bytes have left, while the engines commit and resume; the next call of this
                session, or :meth:`wait`, collects the end of it.

        Raises:
            ManifestError, CompatibilityError, ConfigurationError: refused before anything was changed.
            UpdateFailed: the round failed; ``engine_states`` says what each engine is left with. A torn engine stays
                paused, and the next push mends it.
            StateError: the session is closed, an engine can't take an update, or another thread is in a call.
            EngineUnreachable: no engine answers.
        """
        self._refuse_closed()
        order = Order.of(version, pause=pause, cache=cache)
        self.wait()
        self._ending = self._part.push(order, self._deadline())
        early = self._ending.early
        return (self.wait() or early) if wait else early

    @in_turn
    def wait(self) -> Receipt | None:
        """Collect the end of a ``push(wait=False)``; None where there is none. Raises what that push would have."""
        if self._ending is None:
            return None
        try:
            receipt = self._ending.late()
        except Exception:
            self._ending = None
            raise
        self._ending = None  # not after a Ctrl-C: the phases go on, and the next call collects them
        return receipt

    @in_turn
    def add(self, url: str) -> None:
        """Take one more engine into the session: a server that was started later than the others.

        It holds old weights, so it is paused at once, and it serves nobody until a push has brought it what the others
        hold (:attr:`engine_states` and :attr:`engines` have it from now on). The next push opens a new channel to all.
        Only the sender does anything; other ranks may call it.

        Args:
            url: its base URL.

        Raises:
            StateError: it is an engine of this session already, or can't take an update.
            CompatibilityError, ManifestError: it can't be fed with what the others are fed. It was not touched.
            ControlError: it can't be reached.
        """
        self._refuse_closed()
        self.wait()
        self._part.add(url, self._deadline())

    @in_turn
    def recover(self) -> None:
        """Take lost engines back that were restarted, flush torn ones, and rebuild the channel.

        The next push makes them whole; until then they stay paused.

        Raises:
            StateError: an engine is still lost; the others are ready.
            ControlError: an engine could not be flushed.
        """
        self._refuse_closed()
        self._part.recover(self._deadline())

    @in_turn
    def close(self) -> None:
        """Leave the group and drop every connection. Idempotent, and never raises for an engine that is gone."""
        if self.state is SessionState.CLOSED or self.turns.forked:
            return  # in a forked child there is nothing of its own to close
        try:
            self.wait()
        except Exception:  # it was a push's to raise, and nobody collected it
            log.warning("The last push of the session failed.", exc_info=True)
        try:
            self._part.close(self._deadline().at_most(CLOSE_SECONDS))
        finally:
            self._part.drop()
            self._standing.become(SessionState.CLOSED)

    def _deadline(self) -> Deadline:
        return Deadline.after(self._options.timeout)

    def _refuse_closed(self) -> None:
        if self.turns.forked:
            raise StateError(
                f"The session was opened by process {self.turns.process}; this is {os.getpid()}, a fork of it.",
                hint="push from the process that opened it, or call weightwire.connect() after the fork",
            )
        if self.state is SessionState.CLOSED:
            raise StateError("The session is closed.", hint="open a new one with weightwire.connect()")


def _part(backend: SenderBackend | FollowerBackend, common: Common) -> Leader | Follower:
    return Leader(backend, common) if isinstance(backend, SenderBackend) else Follower(backend, common)
