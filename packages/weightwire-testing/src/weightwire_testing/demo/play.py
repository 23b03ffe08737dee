"""The loop: train a few steps, push, and see that the engine changed its mind to exactly the trainer's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import weightwire
from weightwire.errors import UpdateFailed
from weightwire.options import Options
from weightwire.session import Session

from weightwire_testing import sampling
from weightwire_testing.demo import text
from weightwire_testing.demo.records import Plan, Round
from weightwire_testing.demo.training import Trainer

MOVED = 0.1
"""Before a push, engine and trainer must be further apart than this: otherwise nothing would be proved."""

SAME = 1e-4
"""After it they must be closer than this: float32 leaves a tenth of it between two implementations."""

LONGEST = 64
"""Tokens of a completion, at most."""

STRIDE = 11
"""From one sentence to the next; it leads past all of them."""


def play(url: str, trainer: Trainer, *, plan: Plan, options: Options, show: Callable[[Round], None]) -> list[Round]:
    """Train to the end of *plan*, pushing into the engine at *url* on the way.

    Args:
        url: an engine that serves the trainer's first weights.
        trainer: what trains.
        plan: how long, and how often to push.
        options: the session's.
        show: told of each round.

    Raises:
        UpdateFailed: a push failed, or engine and trainer were too close before it, or too far apart after it.
    """
    rounds = []
    with weightwire.connect(url, trainer.model, options) as session:
        for step in range(1, plan.steps + 1):
            loss = trainer.step()
            if step % plan.every == 0 or step == plan.steps:
                rounds.append(_round(session, url, trainer, step, loss))
                show(rounds[-1])
                judge(rounds[-1])
    return rounds


def _round(session: Session, url: str, trainer: Trainer, step: int, loss: float) -> Round:
    tokens = [text.encode(sentence) for sentence in text.held()]
    wanted = [trainer.score(row) for row in tokens]
    opening = _opening(step)
    before, completion = _apart(url, tokens, wanted), complete(url, opening)
    receipt = session.push(version=step)
    return Round(
        version=step,
        loss=loss,
        nbytes=receipt.stats.nbytes,
        phases=receipt.phases,
        before=before,
        after=_apart(url, tokens, wanted),
        opening=opening,
        completion_before=completion,
        completion_after=complete(url, opening),
    )


def complete(url: str, opening: str) -> str:
    """How the engine goes on after a few words."""
    return text.decode(sampling.greedy(url, text.opening(opening), n=LONGEST))


def _opening(step: int) -> str:
    """Half a sentence that is trained on, another one for each step."""
    known = text.trained()
    return text.half(known[step * STRIDE % len(known)])


def _apart(url: str, tokens: Sequence[Sequence[int]], wanted: Sequence[Sequence[float]]) -> float:
    """The largest difference, over all tokens of the held sentences."""
    served = [sampling.score(url, row) for row in tokens]
    rows = zip(served, wanted, strict=True)
    return max(abs(a - b) for got, want in rows for a, b in zip(got, want, strict=True))


def judge(done: Round) -> None:
    """See that a push was needed, and that it arrived.

    Raises:
        UpdateFailed: it was not, or it did not.
    """
    # Written so that a NaN fails.
    if not done.before > MOVED:
        raise UpdateFailed(
            f"Before version {done.version} engine and trainer were only {done.before:.2g} apart in log-probability; "
            f"more than {MOVED} is needed to see a push arrive.",
            hint="train longer between pushes: --every",
        )
    if not done.after < SAME:
        raise UpdateFailed(
            f"After version {done.version} was pushed, the engine's log-probabilities are {done.after:.2g} away from "
            f"the trainer's; less than {SAME} was expected: the engine does not hold what was sent.",
            hint="that is a bug, in Weightwire or in the engine; please report it",
        )
