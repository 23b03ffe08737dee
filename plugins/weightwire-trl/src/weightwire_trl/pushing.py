"""Pushes of one model into the same engines, in a session that is opened when it is first needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import weightwire
from weightwire.api import resolve
from weightwire.messages import Receipt
from weightwire.options import Options
from weightwire.states import EngineState

Target = str | Sequence[str]
Given = Options | Mapping[str, object] | None


class Pushes:
    """What :func:`weightwire.connect` and ``push()`` are told, kept for as often as they are needed.

    Attributes:
        target: the base URL of an engine, or of several.
        options: the session's, complete.
        receipt: what the last push did; None before the first.
    """

    def __init__(
        self,
        target: Target,
        options: Given = None,
        *,
        pause: Literal["keep", "wait", "abort"] = "keep",
        cache: Literal["reset", "keep"] = "reset",
    ) -> None:
        """Connect nothing yet; the arguments are those of ``connect`` and ``push``."""
        self.target = target
        self.options = resolve(options)
        self.receipt: Receipt | None = None
        self._pause: Literal["keep", "wait", "abort"] = pause
        self._cache: Literal["reset", "keep"] = cache
        self._session: weightwire.Session | None = None
        self._model: object = None

    def open(self, model: object) -> weightwire.Session:
        """The session, opened if there is none of this very model: a trainer may wrap its own anew and begin again.

        Raises:
            WeightwireError: what is wrong; nothing was changed in any engine.
        """
        if self._model is not model:
            self.close()
        if self._session is None:
            self._session, self._model = weightwire.connect(self.target, model, self.options), model
        return self._session

    def push(self, model: object, version: str) -> Receipt:
        """Bring the weights of *model* into every engine; on every rank that it is gathered on.

        Raises:
            WeightwireError: as :meth:`weightwire.Session.push` does.
        """
        self.receipt = self.open(model).push(version, pause=self._pause, cache=self._cache)
        return self.receipt

    def torn(self) -> list[str]:
        """The engines that hold a mix of weights, by URL; known on rank 0 alone."""
        states = self._session.engine_states if self._session is not None else {}
        return [url for url, state in states.items() if state is EngineState.TORN]

    def close(self) -> None:
        """Leave the engines. Idempotent, never raises; the next push opens another session."""
        session, self._session, self._model = self._session, None, None
        if session is not None:
            session.close()
