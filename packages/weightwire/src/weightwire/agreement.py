"""What the trainer's ranks tell each other about a round: through a store, never through a collective.

The sender tells the others when to gather (its engines are paused and the update is open) or that the round is off,
and in the end how it came out. A rank that died is named by the key it never wrote.
"""

from __future__ import annotations

import msgspec

from weightwire.deadlines import Deadline
from weightwire.errors import DeadlineExceeded, UpdateFailed
from weightwire.planes import RankGroup


class Word(msgspec.Struct, frozen=True):
    """What the sender says: how a step came out.

    Attributes:
        error: empty for success.
        hint: what can be done about the error.
        engines: the state of each engine, by URL.
    """

    error: str = ""
    hint: str = ""
    engines: dict[str, str] = {}


class Agreement:
    """The store of one session, seen from one rank."""

    def __init__(self, ranks: RankGroup, session: int) -> None:
        """Keep apart from other sessions of this process: *session* counts them, the same on every rank."""
        self._ranks = ranks
        self._prefix = f"weightwire/{session}"

    @property
    def alone(self) -> bool:
        """Whether there is nobody to agree with."""
        return self._ranks.size == 1

    @property
    def is_sender(self) -> bool:
        """Whether this rank speaks to the engines."""
        return self._ranks.rank == 0

    def here(self, step: str) -> None:
        """Say that this rank has come to *step*."""
        if not self.alone:
            self._ranks.publish(f"{self._prefix}/{step}/{self._ranks.rank}", b"here")

    def all_here(self, step: str, deadline: Deadline) -> None:
        """Wait until every rank has come to *step*.

        Raises:
            UpdateFailed: one has not; names it.
        """
        for rank in range(1, self._ranks.size):
            try:
                self._ranks.read(f"{self._prefix}/{step}/{rank}", deadline)
            except DeadlineExceeded as late:
                raise UpdateFailed(
                    f"Trainer rank {rank} did not come to {step!r} within {deadline.seconds:g} s.",
                    hint=f"look at the log of rank {rank}; every rank must make the same calls",
                ).at(rank=0) from late

    def say(self, step: str, word: Word) -> None:
        """Tell the other ranks how *step* came out. Sender only."""
        if not self.alone:
            self._ranks.publish(f"{self._prefix}/{step}/word", msgspec.json.encode(word))

    def hear(self, step: str, deadline: Deadline) -> Word:
        """Wait for the sender's word on *step*.

        Raises:
            UpdateFailed: it says that the step failed, or says nothing in time.
        """
        try:
            said = self._ranks.read(f"{self._prefix}/{step}/word", deadline)
        except DeadlineExceeded as late:
            raise UpdateFailed(
                f"The sender (rank 0) said nothing about {step!r} within {deadline.seconds:g} s.",
                hint="look at the log of rank 0",
            ).at(rank=self._ranks.rank) from late
        word = msgspec.json.decode(said, type=Word)
        if word.error:
            failed = UpdateFailed(word.error, hint=word.hint).at(rank=self._ranks.rank)
            failed.engine_states = word.engines
            raise failed
        return word
