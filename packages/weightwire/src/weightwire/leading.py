"""The sender's part of a session: it speaks to the engines, sends the bytes, and answers for what is left behind."""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from functools import partial

from weightwire import expected
from weightwire import plan as planning
from weightwire.agreement import Steps, Word, bad_news
from weightwire.backend import SenderBackend
from weightwire.deadlines import Deadline
from weightwire.errors import StateError
from weightwire.led_round import LedRound, working_time
from weightwire.messages import EngineInfo, Receipt, TransferPlan
from weightwire.opening import Opening
from weightwire.orders import Order
from weightwire.rounds import Ending
from weightwire.standing import Common
from weightwire.states import EngineState

log = logging.getLogger(__name__)


class Leader:
    """Opens, leads rounds, recovers."""

    def __init__(self, backend: SenderBackend, common: Common) -> None:
        """Do nothing yet."""
        self._backend = backend
        self._common = common
        self._opening = Opening(backend, common)
        self._name = secrets.token_hex(4)
        self._rounds = itertools.count(1)
        backend.progress = common.lifecycle.progress

    @property
    def engines(self) -> tuple[EngineInfo, ...]:
        """What is known of the engines in the group."""
        return self._backend.engines.infos()

    def engine_states(self) -> dict[str, EngineState]:
        """The state each engine is in, by URL."""
        return self._backend.engines.states()

    def open(self, deadline: Deadline) -> None:
        """Probe the engines, check what will be sent against what they expect, and open the channel.

        Raises:
            WeightwireError: what is wrong; nothing was changed in any engine.
        """
        steps = self._common.agreement.steps("connect")
        try:
            self._opening.connect(deadline)
            self._opening.channel(self._opening.manifest(), deadline)
        except BaseException as error:
            steps.say(bad_news(error))
            raise
        steps.say(Word())

    def push(self, order: Order, deadline: Deadline) -> Ending:
        """Lead a round up to the last byte.

        Raises:
            UpdateFailed: it failed, and the engines are settled.
            WeightwireError: it was refused before anything was changed.
        """
        number, began = next(self._rounds), time.perf_counter()
        steps = self._common.agreement.steps(f"round-{number}")
        plan = self._prepared(order, f"{self._name}-{number}", steps=steps, deadline=working_time(deadline))
        led = LedRound(self._backend, self._common, plan=plan, steps=steps, deadline=deadline)
        ending = led.lead(preflight=time.perf_counter() - began, digest=self._opening.digest)
        return Ending(ending.early, partial(self._learned, plan, ending))

    def add(self, url: str, deadline: Deadline) -> None:
        """Take one more engine in, paused; the next push opens a channel to all of them."""
        self._opening.admit(url, deadline)

    def recover(self, deadline: Deadline) -> None:
        """Take lost engines back that answer again, mend torn ones, and open a channel.

        Raises:
            StateError: an engine is still lost; the others are ready.
        """
        self._opening.recover(deadline, readmit=True)
        self._opening.channel(self._opening.manifest(), deadline)
        lost = self._backend.engines.lost()
        if lost:
            raise StateError(
                f"Still lost, and left out of the group: {', '.join(lost)}.",
                hint="restart those servers and recover again; pushes go to the others meanwhile",
            )

    def close(self, deadline: Deadline) -> None:
        """Leave nothing behind that is whole and paused, leave the channel, drop every connection. Never raises."""
        behind = [engine.url for engine in self._backend.engines.members if engine.behind]
        if behind:
            log.warning("Left paused, since no push has reached them: %s. The next one does.", ", ".join(behind))
        for part in (self._common.lifecycle.resume, self._backend.disown, self._common.lifecycle.close_channel):
            try:
                part(deadline.at_most(deadline.remaining() / 2))
            except Exception:  # there is nobody left to mend it
                log.warning("The session did not close in order.", exc_info=True)

    def drop(self) -> None:
        """Drop every connection at once. Idempotent, never raises."""
        self._backend.close()

    def _prepared(self, order: Order, round_id: str, *, steps: Steps, deadline: Deadline) -> TransferPlan:
        """Everything that can be refused before a whole engine is touched."""
        try:
            self._opening.look(deadline)
            manifest = self._opening.manifest()
            channel = self._opening.channel(manifest, deadline)
            windows = planning.windows(manifest, channel.geometry, infos=self.engines)
        except BaseException as error:
            steps.say(bad_news(error))
            raise
        return TransferPlan(
            round_id=round_id,
            version=order.version,
            manifest=manifest,
            windows=windows,
            geometry=channel.geometry,
            mode=channel.mode,
            pause=order.pause,
            cache=order.cache,
        )

    def _learned(self, plan: TransferPlan, ending: Ending) -> Receipt:
        """What was taken once is what is expected from now on, where nothing better is known."""
        receipt = ending.late()
        self._opening.expected = self._opening.expected or expected.from_manifest(plan.manifest)
        return receipt
