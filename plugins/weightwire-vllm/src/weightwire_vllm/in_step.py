"""Several workers, one queue of replies each: how to tell what a call did after one has failed.

vLLM's executor raises at the first worker that failed and leaves the replies of the workers after it unread. From
then on each call reads those workers' *previous* reply: a call that succeeded is answered with an old error, and a
failure shows one call late (0.17 to 0.33; with one worker there is nothing to leave unread).
"""

from __future__ import annotations

from weightwire.deadlines import Deadline
from weightwire.errors import EngineRefused

from weightwire_vllm.client import Client
from weightwire_vllm.wire import CHECK_HEALTH

SERVER_ERROR = 500


class InStep:
    """Counts the failures that may have left replies unread, and reads them out with calls that do nothing."""

    def __init__(self, client: Client) -> None:
        """Start with nothing unread."""
        self.workers = 1
        self._client = client
        self._unread = 0

    def failed(self, error: EngineRefused) -> None:
        """Take note of a call that the workers refused."""
        if self.workers > 1 and error.status == SERVER_ERROR:
            self._unread += 1

    def drain(self, deadline: Deadline) -> None:
        """Call until a call succeeds, so that the next one's answer is no old error.

        Raises:
            EngineRefused: more failed than there are workers; something else is wrong.
        """
        if self.workers == 1:
            return
        for _ in range(self.workers - 1):
            try:
                self._client.tell(CHECK_HEALTH, deadline)
            except EngineRefused as error:
                self.failed(error)
            else:
                return
        self._client.tell(CHECK_HEALTH, deadline)

    def confirm(self, deadline: Deadline) -> None:
        """After a call that must not have failed, read as many replies as may be behind.

        Raises:
            EngineRefused: it had failed on a worker whose reply came late.
        """
        for _ in range(self._unread):
            self._client.tell(CHECK_HEALTH, deadline)
