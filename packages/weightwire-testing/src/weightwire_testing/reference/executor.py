"""The workers of one engine core, each on a thread of its own, and the calls that all of them get.

Replies are read worker by worker, and the first that failed is raised at once, leaving the replies of later workers
in their queues. From then on every call reads those workers' *previous* reply. vLLM's multi-process executor does the
same (0.17 to 0.33), which is why a client must drain it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from weightwire_testing.reference.worker import Worker

Method = Callable[[Worker], None]


class WorkerFailed(Exception):
    """A worker raised; the text is what vLLM's executor says."""


class Executor:
    """Sends one method to every worker."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        """Start a thread for each worker."""
        self.workers = tuple(workers)
        self._seats = [_Seat(worker) for worker in workers]

    def submit(self, method: Method) -> None:
        """Have every worker run *method*; :meth:`collect` reads what came of it."""
        for seat in self._seats:
            seat.inbox.put(method)

    def collect(self) -> None:
        """Read one reply of each worker.

        Raises:
            WorkerFailed: a reply was a failure, of this call or of an older one.
        """
        for seat in self._seats:
            error = seat.outbox.get()  # no bound, as in vLLM: a worker in a collective holds the whole engine
            if error is not None:
                raise WorkerFailed(
                    f"Worker failed with error '{error}', please check the stack trace above for the root cause"
                )

    def stop(self) -> None:
        """Let the threads end once they are free."""
        for seat in self._seats:
            seat.inbox.put(None)


class _Seat:
    """A worker, its thread and its two queues."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.inbox: queue.SimpleQueue[Method | None] = queue.SimpleQueue()
        self.outbox: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=f"worker {worker.index}", daemon=True).start()

    def _run(self) -> None:
        while (method := self.inbox.get()) is not None:
            try:
                method(self.worker)
            except Exception as error:  # noqa: BLE001 - every failure of a worker is a reply
                self.outbox.put(error)
            else:
                self.outbox.put(None)
