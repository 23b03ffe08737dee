"""Where a session stands, the observers that are told of it, and what else its parts share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weightwire.agreement import Agreement
from weightwire.lifecycle import Lifecycle
from weightwire.messages import StateChange
from weightwire.options import Options
from weightwire.planes import WeightSource
from weightwire.states import EngineState, SessionState, advance


class Standing:
    """The state of one session.

    Attributes:
        state: what the session may do next.
    """

    def __init__(self, lifecycle: Lifecycle, engine_states: Callable[[], dict[str, EngineState]]) -> None:
        """Stand at the beginning.

        Args:
            lifecycle: whose observers are told.
            engine_states: asked for the state of each engine, by URL.
        """
        self.state = SessionState.NEW
        self._lifecycle = lifecycle
        self._engine_states = engine_states

    def become(self, to: SessionState) -> None:
        """Change the state; nothing happens if it is so already.

        Raises:
            StateError: the change is not legal.
        """
        if to is self.state and to is not SessionState.UPDATING:
            return
        self.state = advance(self.state, to)
        self._lifecycle.state_changed(StateChange(session=to, engines=self._engine_states()))

    def ended(self, phase: str, *, seconds: float, error: str) -> None:
        """Tell of a phase that ended."""
        self._lifecycle.state_changed(
            StateChange(session=self.state, engines=self._engine_states(), phase=phase, seconds=seconds, error=error)
        )


@dataclass(frozen=True)
class Common:
    """What the parts of one session share.

    Attributes:
        lifecycle: its hooks.
        standing: its state.
        agreement: how its ranks agree.
        source: where its weights come from.
        options: its options.
    """

    lifecycle: Lifecycle
    standing: Standing
    agreement: Agreement
    source: WeightSource
    options: Options
