"""A pause is answered 20 ms after the engine has come to rest.

``AsyncLLM.pause_generation`` ends with ``asyncio.sleep(0.02)``, so that what requests in flight still have to say
reaches their clients before the answer reaches the caller: "not required for correctness", vLLM says there. A round
that keeps its requests has no use for it, and a model of 1 GB is loaded in less. So for ``mode="keep"`` the answer is
given when the engine has said that it rests; what vLLM does until then, and whether it fails, stays as it is. The same
from 0.17 to 0.32, and not looked at beyond; may go when vLLM does not sleep for ``keep``.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from weightwire_vllm_engine.shims.shim import ANY_DEVICE, Shim

Pause = Callable[..., Awaitable[None]]

_resting: set[asyncio.Task[None]] = set()
"""Pauses that were answered and still sleep: a task that nobody holds may be collected."""


class _Told:
    """Stands in for a *thing* with something else in the place of one attribute."""

    def __init__(self, thing: object, name: str, value: object) -> None:
        vars(self).update(_thing=thing, **{name: value})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._thing, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._thing, name, value)


def prompt(pause: Pause) -> Pause:
    """Make *pause*, which is ``AsyncLLM.pause_generation``, answer ``keep`` as soon as the engine rests."""

    @functools.wraps(pause)
    async def answered_at_once(self: Any, **given: object) -> None:
        if given.get("mode") != "keep":
            await pause(self, **given)
            return
        rests = asyncio.Event()

        async def pause_scheduler(*args: object, **named: object) -> object:
            said: object = await self.engine_core.pause_scheduler_async(*args, **named)
            rests.set()
            return said

        core = _Told(self.engine_core, "pause_scheduler_async", pause_scheduler)
        whole = asyncio.ensure_future(pause(_Told(self, "engine_core", core), **given))
        _resting.add(whole)
        whole.add_done_callback(_resting.discard)
        resting = asyncio.ensure_future(rests.wait())
        await asyncio.wait({whole, resting}, return_when=asyncio.FIRST_COMPLETED)
        resting.cancel()
        if not rests.is_set():
            await whole  # it failed, or needed no scheduler

    return answered_at_once


def _apply() -> None:
    engine = import_module("vllm.v1.engine.async_llm").AsyncLLM
    engine.pause_generation = prompt(engine.pause_generation)


SHIM = Shim("prompt_pause", ANY_DEVICE, "0.17", "0.33", "a pause is answered 20 ms late", _apply)
