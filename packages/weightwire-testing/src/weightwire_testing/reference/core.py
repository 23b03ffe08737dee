"""The engine core: one thread that steps requests and, between steps, serves calls in the order in which they came.

A call that blocks (a transfer whose sender is silent) therefore holds everything behind it: pause, resume, is_paused,
generation. Only what never asks the core, such as ``/health`` and ``/version``, goes on answering. vLLM is the same.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

import torch
from weightwire.messages import PauseMode

from weightwire_testing.reference.executor import Executor, Method, WorkerFailed
from weightwire_testing.reference.generation import PrefixCache, Sequence, step

T = TypeVar("T")

DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class EngineDead(Exception):
    """The core is gone, and with it, soon, the process."""


class CallFailed(Exception):
    """A call to the core failed; the text is what vLLM's core client says."""


class _Call(Generic[T]):
    """A piece of work for the core's thread."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.future: Future[T] = Future()
        self._work = work

    def run(self) -> None:
        try:
            self.future.set_result(self._work())
        except Exception as error:  # noqa: BLE001 - a failing call is the caller's, never the core's
            self.future.set_exception(error)


class EngineCore:
    """The core of one engine: a group of workers for each data-parallel rank, and the requests of each."""

    def __init__(self, groups: list[Executor], on_death: Callable[[str], None]) -> None:
        """Start the thread.

        Args:
            groups: the workers, by data-parallel rank; the first worker of each generates.
            on_death: told, once, why the core ended.
        """
        self.groups = groups
        self.weight_version = "default"
        self.paused: PauseMode | None = None
        self.sleeping = False
        self._on_death = on_death
        self._dead = ""
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[_Call[object] | None] = queue.SimpleQueue()
        self._running: list[tuple[int, Sequence]] = []
        self._draining: list[Sequence] = []
        self._drained: list[Future[None]] = []
        self._clear_when_drained = False
        self._prefixes = [PrefixCache() for _ in groups]
        threading.Thread(target=self._run, name="engine core", daemon=True).start()

    @property
    def dead(self) -> bool:
        """Whether the core is gone."""
        return bool(self._dead)

    def call(self, work: Callable[[], T]) -> T:
        """Run *work* on the core's thread, after what came before it.

        Waits as long as that takes: vLLM's server has no time-out here, its clients must have one.

        Raises:
            EngineDead: there is no core any more.
        """
        call = _Call(work)
        with self._lock:
            if self._dead:
                raise EngineDead(DEAD)
            self._calls.put(call)  # type: ignore[arg-type]  # a queue of calls of any result
        return call.future.result()

    def collective_rpc(self, method: Method) -> None:
        """Run *method* on every worker of every group.

        Raises:
            CallFailed: a worker failed; the first failure is told, after every group has answered.
            EngineDead: there is no core any more.
        """
        self.call(lambda: self._collective(method))

    def pause(self, mode: PauseMode, *, clear_cache: bool) -> None:
        """Stop generating; with ``wait``, return only when the requests in flight are done.

        Raises:
            EngineDead: there is no core any more.
        """
        self.call(lambda: self._pause(mode, clear_cache=clear_cache)).result()

    def resume(self) -> None:
        """Generate again. Nothing checks that the model is whole.

        Raises:
            EngineDead: there is no core any more.
        """
        self.call(self._resume)

    def clear_caches(self) -> None:
        """Forget keys and values, also those of requests in flight. On the core's thread."""
        for prefixes in self._prefixes:
            prefixes.clear()
        for _, sequence in self._running:
            sequence.cache = None

    def add(self, sequence: Sequence, group: int) -> None:
        """Queue a request with a data-parallel rank.

        Raises:
            EngineDead: there is no core any more.
        """
        self.call(lambda: self._running.append((group, sequence)))

    def abort(self, keys: frozenset[str] | None) -> int:
        """End the requests of these keys, or all; returns how many there were.

        Raises:
            EngineDead: there is no core any more.
        """
        return self.call(lambda: self._abort(keys))

    def stop(self) -> None:
        """End the thread once it is free; whoever waits is told that the engine is dead."""
        self._die("stopped", tell=False)
        self._calls.put(None)
        for executor in self.groups:
            executor.stop()

    # On the core's thread from here on.

    def _run(self) -> None:
        torch.set_num_threads(1)
        try:
            while not self._dead:
                self._serve(block=not self._turn())
                for group, sequence in self._turn():  # asked again: a call may have paused it
                    self._advance(group, sequence)
                self._settle()
        except Exception as error:  # noqa: BLE001 - whatever it was, the engine is dead of it
            self._die(repr(error), tell=True)

    def _serve(self, *, block: bool) -> None:
        try:
            while True:
                call = self._calls.get(block=block)
                if call is None:
                    return
                call.run()
                block = False
        except queue.Empty:
            return

    def _turn(self) -> list[tuple[int, Sequence]]:
        """The requests that get a token now."""
        if self.sleeping or self.paused in {PauseMode.KEEP, PauseMode.ABORT}:
            return []
        if self.paused is PauseMode.WAIT:
            return [(group, sequence) for group, sequence in self._running if sequence in self._draining]
        return list(self._running)

    def _advance(self, group: int, sequence: Sequence) -> None:
        worker = self.groups[group].workers[0]
        if worker.reload.open:
            raise RuntimeError("Cannot run a forward pass: tensors are on the meta device")
        if step(worker.reload.model, sequence, prefixes=self._prefixes[group]):
            self._running.remove((group, sequence))

    def _pause(self, mode: PauseMode, *, clear_cache: bool) -> Future[None]:
        paused: Future[None] = Future()
        if mode is PauseMode.ABORT:
            self._abort(None)
        if mode is PauseMode.WAIT and self._running:
            self._draining = [sequence for _, sequence in self._running]
            self._drained.append(paused)
            self._clear_when_drained = clear_cache
        else:
            if clear_cache:
                self.clear_caches()
            paused.set_result(None)
        self.paused = mode
        return paused

    def _settle(self) -> None:
        """Let a pause that waits return, once what it waits for is done."""
        self._draining = [s for s in self._draining if any(s is running for _, running in self._running)]
        if self._drained and not self._draining:
            if self._clear_when_drained:
                self.clear_caches()
            for paused in self._drained:
                paused.set_result(None)
            self._drained = []

    def _resume(self) -> None:
        self.paused = None
        self._draining = []

    def _abort(self, keys: frozenset[str] | None) -> int:
        ended = [entry for entry in self._running if keys is None or entry[1].key in keys]
        for entry in ended:
            self._running.remove(entry)
            entry[1].finish("abort")
        return len(ended)

    def _collective(self, method: Method) -> None:
        for executor in self.groups:
            executor.submit(method)
        failures: list[WorkerFailed] = []
        for executor in self.groups:
            try:
                executor.collect()
            except WorkerFailed as error:
                failures.append(error)
        if failures:
            raise CallFailed(f"Call to collective_rpc method failed: {failures[0]}") from failures[0]

    def _die(self, reason: str, *, tell: bool) -> None:
        with self._lock:
            if self._dead:
                return
            self._dead = reason
        for _, sequence in self._running:
            sequence.finish("error", DEAD)
        for paused in self._drained:
            paused.set_exception(EngineDead(DEAD))
        while not self._calls.empty():
            call = self._calls.get()
            if call is not None:
                call.future.set_exception(EngineDead(DEAD))
        if tell:
            self._on_death(reason)
