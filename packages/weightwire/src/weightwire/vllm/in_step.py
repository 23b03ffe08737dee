"""Several workers, one queue of replies each: how to tell what a call did after one has failed.

vLLM's executor raises at the first worker that failed and leaves the replies of the workers after it unread. From
then on each call reads those workers' *earlier* replies: a call that succeeded is answered with an old error, and a
failure shows as many calls late as replies are unread. It never catches up (0.17 to 0.33; with one worker there is
nothing to leave unread). So old errors are read out before a call that matters, and after it as many calls are made
as its own reply may be late.
"""

from __future__ import annotations

from weightwire.deadlines import Deadline
from weightwire.errors import EngineRefused
from weightwire.vllm.client import Client
from weightwire.vllm.posts import CHECK_HEALTH

SERVER_ERROR = 500

LEFT_BY_OTHERS = 4
"""Replies that an earlier client is assumed to have left unread in an engine that has to be flushed."""


class InStep:
    """Counts the failures that may have left replies unread, and reads them out with calls that do nothing."""

    def __init__(self, client: Client) -> None:
        """Start with nothing unread."""
        self.workers = 1
        self._client = client
        self._unread = 0

    def failed(self, error: EngineRefused) -> None:
        """Take note of a call that the workers refused: each leaves at most one more reply unread."""
        if self.workers > 1 and error.status == SERVER_ERROR:
            self._unread += 1

    def drain(self, deadline: Deadline) -> None:
        """Call until as many calls in a row succeed as replies may be unread: then none of those is an old error.

        Raises:
            EngineRefused: there are more errors than can be old ones; something else is wrong.
        """
        if self.workers == 1:
            return
        self._unread = max(self._unread, LEFT_BY_OTHERS)
        old_errors = self._unread * self.workers
        in_a_row = 0
        while in_a_row < self._unread:
            try:
                self._client.tell(CHECK_HEALTH, deadline)
                in_a_row += 1
            except EngineRefused as error:
                self.failed(error)
                in_a_row = 0
                old_errors -= 1
                if old_errors < 0:
                    raise

    def confirm(self, deadline: Deadline) -> None:
        """After a call that must not have failed, read as many replies as its own may be late.

        Raises:
            EngineRefused: it had failed on a worker whose reply came late.
        """
        for _ in range(self._unread):
            self._client.tell(CHECK_HEALTH, deadline)
