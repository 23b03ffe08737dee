"""What the trainer's ranks tell each other about a round: through a store, never through a collective.

A round has a boundary before each window and one after the last. At a boundary every rank says how it fared and then
waits for the sender, which has heard all of them before it speaks. So all ranks gather the same windows, or leave off
at the same boundary; a rank that failed is quoted, and one that died is named by the report it never wrote::

    sender   hear all · say "go" │ window 0 │ hear all · say "go" │ window 1 │ hear all · commit … · say how it ended
    others   report · hear       │ window 0 │ report · hear       │ window 1 │ report ·              hear
"""

from __future__ import annotations

import itertools
from typing import Self

import msgspec

from weightwire.deadlines import Deadline
from weightwire.errors import ChannelError, DeadlineExceeded, UpdateFailed, WeightwireError
from weightwire.planes import RankGroup


class Report(msgspec.Struct, frozen=True):
    """What a rank says of itself.

    Attributes:
        error: what went wrong on it; empty for nothing.
        digest: of the manifest it is about to gather; said at the first boundary.
    """

    error: str = ""
    digest: str = ""


class Word(msgspec.Struct, frozen=True):
    """What the sender says.

    Attributes:
        error: why the round is off; empty to go on, or for success.
        hint: what can be done about the error.
        engines: the state of each engine, by URL, where the round has ended.
        cuts: where each window ends, as indices into the manifest; said at the first boundary.
    """

    error: str = ""
    hint: str = ""
    engines: dict[str, str] = {}
    cuts: tuple[int, ...] = ()


def bad_news(error: BaseException) -> Word:
    """The word that a round is off because of *error*."""
    if isinstance(error, WeightwireError):
        return Word(error=error.message, hint=error.hint)
    return Word(error=f"{type(error).__name__} on rank 0: {error}", hint="look at the log of rank 0")


_sessions = itertools.count()
"""Of this process with other ranks; those that it has by itself are not counted, since other ranks don't see them."""


class Agreement:
    """The store of one session, seen from one rank."""

    def __init__(self, ranks: RankGroup, session: int) -> None:
        """Keep apart from other sessions of this process: *session* counts them, the same on every rank."""
        self._ranks = ranks
        self._prefix = f"weightwire/{session}"

    @classmethod
    def of_the_next_session(cls, ranks: RankGroup) -> Self:
        """Count one on; called once for each ``connect()`` on every rank, also for one that fails."""
        return cls(ranks, next(_sessions) if ranks.size > 1 else 0)

    def steps(self, name: str) -> Steps:
        """The boundaries of one undertaking: ``"connect"``, or a round."""
        return Steps(self._ranks, f"{self._prefix}/{name}")


class Steps:
    """One undertaking's boundaries, walked through in order."""

    def __init__(self, ranks: RankGroup, prefix: str) -> None:
        """Stand before the first boundary."""
        self._ranks = ranks
        self._prefix = prefix
        self._boundary = 0
        self._off = False

    # Every rank but the sender.

    def report(self, report: Report) -> None:
        """Say how this rank fared up to the next boundary."""
        if self._ranks.size > 1:
            self._ranks.publish(self._key(self._ranks.rank), msgspec.json.encode(report))

    def hear(self, deadline: Deadline) -> Word:
        """Wait at the next boundary for the sender's word.

        Raises:
            UpdateFailed: the round is off, or the sender says nothing in time.
        """
        rank = self._ranks.rank
        try:
            said = self._ranks.read(self._key("word"), deadline)
        except DeadlineExceeded as late:
            raise UpdateFailed(
                f"The sender (rank 0) said nothing for {deadline.seconds:g} s.", hint="look at the log of rank 0"
            ).at(rank=rank) from late
        except ChannelError as gone:  # the sender mostly hosts the store: it ended before this rank could ask it
            raise UpdateFailed(f"The sender (rank 0) is gone: {gone.message}", hint=gone.hint).at(rank=rank) from gone
        self._boundary += 1
        word = msgspec.json.decode(said, type=Word)
        if word.error:
            failed = UpdateFailed(word.error, hint=word.hint).at(rank=rank)
            failed.engine_states = word.engines
            raise failed
        return word

    # The sender.

    def hear_all(self, deadline: Deadline, *, digest: str = "") -> None:
        """Wait at the next boundary until every rank has reported.

        Args:
            deadline: when a rank counts as dead.
            digest: of the manifest that every rank must be about to gather; empty where none is said.

        Raises:
            UpdateFailed: a rank failed, is about to gather something else, or is missing; names it.
        """
        for rank in range(1, self._ranks.size):
            report = self._report_of(rank, deadline)
            if report.error:
                raise UpdateFailed(
                    f"Trainer rank {rank} failed: {report.error}", hint=f"look at the log of rank {rank}"
                ).at(rank=rank)
            if digest != report.digest:
                raise UpdateFailed(
                    f"Trainer rank {rank} is about to gather other tensors than rank 0.",
                    hint="every rank must hold the same model, and give it to weightwire.connect()",
                ).at(rank=rank)

    def say(self, word: Word) -> None:
        """Speak at the next boundary. After an error there is none."""
        if self._ranks.size > 1 and not self._off:
            self._ranks.publish(self._key("word"), msgspec.json.encode(word))
        self._boundary += 1
        self._off = self._off or bool(word.error)

    def _report_of(self, rank: int, deadline: Deadline) -> Report:
        try:
            said = self._ranks.read(self._key(rank), deadline)
        except DeadlineExceeded as late:
            raise UpdateFailed(
                f"Trainer rank {rank} did not come to {self._key(rank)!r} within {deadline.seconds:g} s.",
                hint=f"look at the log of rank {rank}: it died or waits elsewhere; every rank must make the same calls",
            ).at(rank=rank) from late
        return msgspec.json.decode(said, type=Report)

    def _key(self, who: object) -> str:
        return f"{self._prefix}/{self._boundary}/{who}"
