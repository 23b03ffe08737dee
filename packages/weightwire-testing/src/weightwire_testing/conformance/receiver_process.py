"""``python -m weightwire_testing.conformance.receiver_process MODULE:FUNCTION``: does as stdin tells it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import BinaryIO, cast

import msgspec
from weightwire.registry import load

from weightwire_testing.conformance.receiving import Answer, Command, Job, Leave, Receiver
from weightwire_testing.model import fingerprint

Join = Callable[[Job], Receiver]


class _Worker:
    """Holds the receiver of the job under way."""

    def __init__(self, join: Join) -> None:
        self._join = join
        self._receiver: Receiver | None = None

    def do(self, command: Command) -> Answer:
        """Do one thing; errors become answers."""
        try:
            return Answer(digests=self._digests(command))
        except Exception as error:  # noqa: BLE001 - the suite judges it
            return Answer(error=repr(error))

    def _digests(self, command: Command) -> dict[str, str]:
        if isinstance(command, Job | Leave) and self._receiver is not None:
            self._receiver.close()
            self._receiver = None
        if isinstance(command, Job):
            self._receiver = self._join(command)
        if isinstance(command, Job | Leave):
            return {}
        if self._receiver is None:
            raise RuntimeError("told to receive before it joined")
        return {name: fingerprint({"": tensor}) for name, tensor in self._receiver.receive(command.tensors)}


def serve(reference: str, *, commands: BinaryIO, answers: BinaryIO) -> None:
    """Do what *commands* says, line by line, until it ends."""
    worker = _Worker(cast("Join", load(reference)))
    for line in commands:
        answer = worker.do(msgspec.json.decode(line, type=Command))
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()


if __name__ == "__main__":
    serve(sys.argv[1], commands=sys.stdin.buffer, answers=sys.stdout.buffer)
