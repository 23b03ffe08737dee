"""A trainer in a process of its own, which does what it is told, a line of JSON at a time.

``python trainer.py [RANK SIZE PORT]``. It answers each command with one line, and tells with a line of its own when it
has come to where it was told to halt: it then waits there, to be killed, interrupted, or let go.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta

import msgspec
import requests
import torch
import torch.distributed as dist
import weightwire
from speech import Answer, Command
from weightwire.errors import UpdateFailed, WeightwireError
from weightwire.messages import Manifest
from weightwire.options import Options
from weightwire_testing.model import TinyLlama
from weightwire_torch.sources import ModuleSource

HALT_SECONDS = 60.0
COLLECTIVE_SECONDS = 4.0
BUCKET_BYTES = 200_000
"""Small, so that weights of 1.7 MB travel in several packs."""


def say(answer: Answer) -> None:
    """Write one line."""
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


def give_back() -> None:
    """Have the allocator give back what is free, so that what is resident is what is held.

    By itself glibc keeps up to 2 MB more or less at the end of its heap, once torch's import has taught it to: a step
    of that size anywhere in 800 rounds is a slope of up to 4 KB a round.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Halts:
    """Stops where it is told to, from a hook or from a gather."""

    def __init__(self) -> None:
        """Stop nowhere."""
        self._point = ""
        self._let_go = 0

    def next(self, point: str) -> None:
        """Let go who is halted, and halt at *point* from now on."""
        self.let_go()
        self._point = point

    def let_go(self, *_: object) -> None:
        """Let go who is halted; a signal handler, so it takes no lock."""
        self._let_go += 1

    def at(self, point: str) -> None:
        """Come to *point*."""
        if point != self._point:
            return
        self._point, before, until = "", self._let_go, time.monotonic() + HALT_SECONDS
        say(Answer(halted=point))
        while self._let_go == before and time.monotonic() < until:
            time.sleep(0.01)

    @weightwire.hookimpl(wrapper=True)
    def weightwire_begin_update(self) -> Iterator[None]:
        """Before and after the update is opened."""
        self.at("before begin")
        done = yield
        self.at("after begin")
        return done

    @weightwire.hookimpl(wrapper=True)
    def weightwire_commit_update(self) -> Iterator[None]:
        """Before the commit."""
        self.at("before commit")
        self.at("in commit")
        return (yield)

    @weightwire.hookimpl(wrapper=True)
    def weightwire_resume(self) -> Iterator[None]:
        """Before the engine goes on."""
        self.at("before resume")
        return (yield)


class Tampers:
    """Another client, which once sets another version between commit and verify."""

    def __init__(self, url: str) -> None:
        """Tamper with *url*."""
        self.urls = [url]

    @weightwire.hookimpl(wrapper=True)
    def weightwire_verify_update(self) -> Iterator[None]:
        """Set it."""
        while self.urls:
            url = self.urls.pop()
            requests.post(f"{url}/update_weight_version", json={"new_version": "not ours"}, timeout=5)
        return (yield)


class Source:
    """One of three sets of weights; with several ranks each holds a share of them, and a gather is a collective."""

    def __init__(self, halts: Halts) -> None:
        """Hold all three."""
        models = {name: TinyLlama(seed=seed) for name, seed in (("A", 1), ("B", 2), ("C", 3))}
        self._sources = {name: ModuleSource(model, Options()) for name, model in models.items()}
        self._halts = halts
        self.weights = "B"
        self.fail = ""

    @property
    def ranks(self) -> object:
        """Who gathers together."""
        return self._sources["A"].ranks

    def manifest(self) -> Manifest:
        """The same for all three."""
        return self._sources["A"].manifest()

    def gather(self, group: int) -> Sequence[torch.Tensor]:
        """Gather, and do what goes wrong here."""
        last = len(self.manifest().groups) - 1
        at = {0: "first", last: "last", last // 2: "middle"}.get(group, "")
        if at == "middle":
            self._halts.at("in transfer")
            self._go_wrong()
        tensors = [_whole(tensor) for tensor in self._sources[self.weights].gather(group)]
        if at and at == self.fail:
            raise RuntimeError(f"no memory for {self.manifest().tensors[self.manifest().groups[group][0]].name}")
        return tensors

    def _go_wrong(self) -> None:
        if self.fail == "die":
            os._exit(1)
        if self.fail == "before the collective":
            raise RuntimeError("this rank failed on its own")


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    if not dist.is_initialized():
        return tensor
    mine = tensor.chunk(dist.get_world_size())[dist.get_rank()].contiguous()
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    return torch.cat(parts)


class Trainer:
    """Carries commands out."""

    def __init__(self) -> None:
        """Be ready."""
        self.halts = Halts()
        self.source = Source(self.halts)
        self.session: weightwire.Session | None = None

    def carry_out(self, command: Command) -> Answer:
        """Do one thing, and say how it went."""
        began = time.monotonic()
        self.halts.next(command.halt)
        self.source.weights, self.source.fail = command.weights, command.fail
        try:
            engines = self._do(command)
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - all of it is told
            return self._told(error, time.monotonic() - began)
        return Answer(seconds=time.monotonic() - began, engines=engines, states=self._states())

    def _do(self, command: Command) -> tuple[str, ...]:
        if command.do == "connect":
            plugins = [self.halts, *([Tampers(command.urls[0])] if command.tamper else [])]
            options = {
                "timeout": command.timeout,
                "data_plane": command.plane,
                "bucket_bytes": BUCKET_BYTES,
            }
            self.session = weightwire.connect(command.urls, self.source, options, plugins=plugins)
            return ()
        session = self.session
        if session is None:
            raise LookupError("there is no session")
        if command.do == "push":
            return session.push(command.version).engines
        if command.do == "add":
            session.add(command.urls[0])
            return ()
        {"recover": session.recover, "close": session.close, "wait": session.wait}[command.do]()
        return ()

    def _states(self) -> dict[str, str]:
        return {} if self.session is None else {url: str(s) for url, s in self.session.engine_states.items()}

    def _told(self, error: BaseException, seconds: float) -> Answer:
        states = error.engine_states if isinstance(error, UpdateFailed) else self._states()
        phase = error.where.phase if isinstance(error, WeightwireError) else ""
        return Answer(seconds=seconds, error=type(error).__name__, text=str(error), phase=phase, states=dict(states))


def main(arguments: Sequence[str]) -> None:
    """Join the other ranks, if there are any, and obey until stdin closes."""
    torch.set_num_threads(1)
    if arguments:
        rank, size, port = map(int, arguments)
        limit = timedelta(seconds=COLLECTIVE_SECONDS)
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=limit
        )
    trainer = Trainer()
    signal.signal(signal.SIGUSR1, trainer.halts.let_go)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has what it runs in the background ignore it
    say(Answer(ready=True))
    for line in sys.stdin.buffer:
        answer = trainer.carry_out(msgspec.json.decode(line, type=Command))
        give_back()
        say(answer)


if __name__ == "__main__":
    main(sys.argv[1:])
