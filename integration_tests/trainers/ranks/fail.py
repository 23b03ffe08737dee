"""Every rank of a trainer: a push that succeeds, then one in which something happens to a rank; what each says.

A rank that lives writes what its push raised, and when, and ends at once.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import starting
import torch.distributed as dist
import weightwire
import words
from setups import make
from weightwire import negotiate
from weightwire.options import Options


class Told(RuntimeError):
    """What a source raises because it was told to."""


class Faulty:
    """A weight source to which something happens, in the second push, at one group."""

    def __init__(self, source: object, fault: str, group: int) -> None:
        self._source = source
        self._fault = fault
        self._group = group
        self.armed = False

    @property
    def ranks(self) -> object:
        return self._source.ranks

    def manifest(self) -> object:
        return self._source.manifest()

    def gather(self, group: int) -> Sequence[object]:
        here = self.armed and group == self._group % len(self.manifest().groups)
        if here and self._fault in BEFORE:
            BEFORE[self._fault]()
        gathered = self._source.gather(group)
        if here and self._fault in AFTER:
            AFTER[self._fault]()
        return gathered


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def freeze() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def complain() -> None:
    raise Told("told to")


BEFORE: dict[str, Callable[[], None]] = {"dies inside": die, "freezes inside": freeze}
"""What happens while the others are in the collective of that group."""

AFTER: dict[str, Callable[[], None]] = {"raises": complain, "dies after": die}
"""What happens between two collectives, or behind the last."""


def attempt(push: Callable[[], object]) -> dict[str, object]:
    began = time.monotonic()
    try:
        push()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is written down
        return {"error": type(error).__name__, "text": str(error), "seconds": time.monotonic() - began}
    return {"error": "", "text": "", "seconds": time.monotonic() - began}


def main() -> None:
    parser = words.parser()
    parser.add_argument("--group-timeout", required=True, type=float, help="of the trainer's own process group")
    parser.add_argument("--victim", required=True, type=int)
    parser.add_argument("--fault", required=True)
    parser.add_argument("--group", default=1, type=int)
    parser.add_argument("--setup", default="fsdp2")
    given = parser.parse_args()
    starting.start(timeout=timedelta(seconds=given.group_timeout))
    trainer = make(given.setup, given.checkpoint)
    rank = dist.get_rank()
    source = Faulty(
        negotiate.weight_source(weightwire.plugins().registry, trainer.model, Options()),
        given.fault if rank == given.victim else "",
        given.group,
    )
    session = weightwire.connect(given.url, source, given.options)
    trainer.step(0)
    session.push(version="good")
    source.armed = True
    if rank == given.victim and given.fault == "dies before":
        die()
    words.say(given.out, "bad", attempt(lambda: session.push(version="bad")))
    os._exit(0)


if __name__ == "__main__":
    main()
