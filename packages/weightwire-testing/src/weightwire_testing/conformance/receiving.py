"""Receivers for the data plane suite: what one is told and answers, and its process.

A receiver is named by an import string, ``module:function``. The function is called in a process of its own as
``(job)`` with a :class:`Job`; it joins the group and returns a :class:`Receiver`. The process serves many jobs, one
after the other: starting one takes seconds.
"""

from __future__ import annotations

import atexit
import itertools
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.messages import PackGeometry, Rendezvous, TensorMeta


class Job(msgspec.Struct, frozen=True, tag="join"):
    """Join a group.

    Attributes:
        rendezvous: what the plane's ``prepare`` returned.
        rank: this receiver's rank; the sender is 0.
        geometry: how tensors are put together.
        tensors: everything that may travel, so that memory can be set aside.
    """

    rendezvous: Rendezvous
    rank: int
    geometry: PackGeometry
    tensors: tuple[TensorMeta, ...]


class Receive(msgspec.Struct, frozen=True, tag="receive"):
    """Receive one window."""

    tensors: tuple[TensorMeta, ...]


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """Leave the group."""


Command = Job | Receive | Leave


class Answer(msgspec.Struct, frozen=True):
    """What a receiver says when it has done as it was told.

    Attributes:
        digests: of each tensor it received, by name (see :func:`weightwire_testing.model.fingerprint`).
        error: what went wrong; empty if nothing did.
    """

    digests: dict[str, str] = {}
    error: str = ""


class Receiver(Protocol):
    """A member of the group that receives."""

    def receive(self, tensors: Sequence[TensorMeta]) -> Iterable[tuple[str, Any]]:
        """Receive one window; names and ``torch.Tensor``, each valid until the next is asked for."""

    def close(self) -> None:
        """Leave the group. Idempotent."""


class ReceiverProcess:
    """A process that receives. It ends with this one."""

    def __init__(self, reference: str) -> None:
        """Start it.

        Args:
            reference: the import string of the receiver's function.
        """
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, "-m", "weightwire_testing.conformance.receiver_process", reference],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def tell(self, command: Command) -> Call[Answer]:
        """Have it do something; the call ends when it has.

        Raises:
            EOFError: the process has ended; from the call, if it ends instead.
        """
        if self._process.stdin is None or not self.alive:
            raise EOFError("the receiver's process has ended")
        with suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(command) + b"\n")
            self._process.stdin.flush()
        return Call(self._answer, doing=f"waiting for a receiver to {type(command).__name__.lower()}")

    def kill(self) -> None:
        """End it at once, as a crash would. Idempotent."""
        self._process.kill()
        self._process.wait(10)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def _answer(self) -> Answer:
        line = self._process.stdout.readline() if self._process.stdout is not None else b""
        if not line:
            raise EOFError("the receiver's process ended")
        return msgspec.json.decode(line, type=Answer)


_POOL: dict[str, list[ReceiverProcess]] = {}
_START_SECONDS = 60.0


def receivers(reference: str, count: int) -> list[ReceiverProcess]:
    """Receivers that have started: those of earlier tests as far as they live, since starting one takes seconds.

    Args:
        reference: the import string of the receiver's function.
        count: how many.

    Raises:
        DeadlineExceeded: one did not start in time.
    """
    alive = [one for one in _POOL.get(reference, []) if one.alive]
    fresh = [ReceiverProcess(reference) for _ in range(count - len(alive))]
    _POOL[reference] = alive + fresh
    answers([one.tell(Leave()) for one in fresh], Deadline.after(_START_SECONDS))
    return _POOL[reference][:count]


@atexit.register
def _end_receivers() -> None:
    for one in itertools.chain.from_iterable(_POOL.values()):
        one.kill()


def answers(calls: Sequence[Call[Answer]], deadline: Deadline) -> list[Answer]:
    """Wait for every answer.

    Raises:
        AssertionError: a receiver failed.
        EOFError: its process ended.
        DeadlineExceeded: it did not answer in time.
    """
    given = [call.result(deadline) for call in calls]
    for answer in given:
        if answer.error:
            raise AssertionError(f"a receiver failed: {answer.error}")
    return given
