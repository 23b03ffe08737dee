"""The error of a round that failed: what happened, what every engine is left with, what to do now."""

from __future__ import annotations

from weightwire.agreement import Word
from weightwire.engines import Engines
from weightwire.errors import UpdateFailed, WeightwireError
from weightwire.rounds import Round
from weightwire.states import EngineState


def update_failed(work: Round, error: BaseException, *, engines: Engines) -> UpdateFailed:
    """Make the error to raise for *error*, once the engines are settled."""
    known = error if isinstance(error, WeightwireError) else None
    held = ", ".join(f"{engine.url} is {_left(engine.state, held=engine.held)}" for engine in engines.members)
    failed = UpdateFailed(
        f"The update to version {work.plan.version!r} failed in the phase {work.phase or 'ready'!r}: "
        f"{known.message if known else f'{type(error).__name__}: {error}'} Afterwards {held}.",
        hint=_what_now(engines, known),
        server_text=known.server_text if known else "",
        where=known.where if known else None,
    ).at(phase=work.phase or "ready", rank=0)
    failed.engine_states = dict(engines.states())
    return failed


def word_of(failed: UpdateFailed) -> Word:
    """What the other ranks are told of it."""
    return Word(error=failed.message, hint=failed.hint, engines=failed.engine_states)


def _left(state: EngineState, *, held: bool) -> str:
    return f"{state} but paused" if state is EngineState.WHOLE and held else str(state)


def _what_now(engines: Engines, known: WeightwireError | None) -> str:
    states = [engine.state for engine in engines.members]
    if EngineState.LOST in states:
        several = len(states) > states.count(EngineState.LOST)
        then = "then session.recover() takes them back" if several else "then push again"
        return f"restart the servers that are lost ({', '.join(engines.lost())}); {then}"
    if EngineState.TORN in states:
        return "mend the cause and push again: torn engines stay paused until a full push succeeds"
    if any(engine.behind for engine in engines.members):
        return "push again: an engine that joined late, or was found paused, stays so until a push has reached it"
    if any(engine.held for engine in engines.members):
        return "push again, which resumes them too; or resume by hand: curl -X POST URL/resume"
    return known.hint if known else "mend the cause and push again; the engines serve what they served"
