"""What a request comes to: a route, or a switch of the tests; what faults do to it; and how errors become replies."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

import msgspec
from weightwire.errors import ConfigurationError

from weightwire_testing.faults import Fault, FaultPlan, Kind, When
from weightwire_testing.reference.core import CallFailed, EngineDead
from weightwire_testing.reference.engine import Engine
from weightwire_testing.reference.exchange import Problem, Reply, Request, detail, error, internal, ok
from weightwire_testing.reference.reports import Called
from weightwire_testing.reference.routes import ROUTES, Route
from weightwire_testing.reference.settings import EngineSettings
from weightwire_testing.reference.transfer import DIED_ON_PURPOSE

_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is to be sent, and what is to go wrong while it is."""

    reply: Reply
    fault: Fault | None = None


class Application:
    """The web server's inside. Called from many threads."""

    def __init__(self, settings: EngineSettings, die: Callable[[int], None] = os._exit) -> None:
        """Start an engine.

        Args:
            settings: its set-up.
            die: ends the process with a status.
        """
        self._die = die
        self._faults = FaultPlan(settings.faults)
        self._calls: deque[Called] = deque(maxlen=_REMEMBERED)
        self._engine = self._make(settings)

    def answer(self, request: Request) -> Outcome:
        """Answer one request; never raises."""
        switch = _SWITCHES.get((request.method, request.path))
        if switch is not None:
            return Outcome(_guarded(lambda: switch(self, request), silent=False))
        outcome = self._route(request)
        cut = outcome.fault is not None and outcome.fault.kind is Kind.CUT
        self._calls.append(Called(request.method, request.path, 0 if cut else outcome.reply.status))
        return outcome

    def reset(self, request: Request) -> Reply:
        """Begin anew with the settings in the body, or with the same: nothing of the old engine is left."""
        settings = msgspec.json.decode(request.body, type=EngineSettings) if request.body else self._engine.settings
        old, self._engine = self._engine, self._make(settings)
        self._faults.replace(settings.faults)
        self._calls.clear()
        old.core.stop()
        return ok({})

    def set_faults(self, request: Request) -> Reply:
        """Put the faults in the body in force, in words or as objects, instead of those there were."""
        given = msgspec.json.decode(request.body, type=list[str | Fault])
        faults = tuple(Fault.parse(fault) if isinstance(fault, str) else fault for fault in given)
        self._faults.replace(faults)
        return self.faults(request)

    def faults(self, _request: Request) -> Reply:
        """The faults in force."""
        return ok(self._faults.faults)

    def calls(self, _request: Request) -> Reply:
        """The calls since the engine began, switches left out."""
        return ok(list(self._calls))

    def weights(self, _request: Request) -> Reply:
        """What every worker holds."""
        return ok(self._engine.holdings())

    def _make(self, settings: EngineSettings) -> Engine:
        return Engine(settings, faults=self._faults, on_death=lambda reason: self._engine_died(settings, reason))

    def _engine_died(self, settings: EngineSettings, reason: str) -> None:
        """As vLLM: calls fail and ``/health`` says 503 for a moment, then the process is gone."""
        os.write(2, f"the engine core died: {reason}\n".encode())
        timer = threading.Timer(settings.death_delay, self._die, args=(1,))
        timer.daemon = True
        timer.start()

    def _route(self, request: Request) -> Outcome:
        engine = self._engine
        route = _find(request, engine.settings)
        if isinstance(route, Reply):
            return Outcome(route)
        silent = engine.release.silent_errors
        fault = self._faults.next(route.phase) if route.phase is not None else None
        stopped = self._before(fault, silent=silent)
        if stopped is not None:
            return stopped
        reply = _guarded(lambda: route.handler(engine, request), silent=silent)
        return self._after(fault, reply, silent=silent)

    def _before(self, fault: Fault | None, *, silent: bool) -> Outcome | None:
        """What a fault does before the engine acts; None to go on."""
        if fault is None or fault.when is not When.BEFORE:
            return None
        if fault.kind is Kind.STALL:
            time.sleep(fault.seconds)
            return None
        return self._after(msgspec.structs.replace(fault, when=When.AFTER), ok({}), silent=silent)

    def _after(self, fault: Fault | None, reply: Reply, *, silent: bool) -> Outcome:
        if fault is None or fault.when is not When.AFTER:
            return Outcome(reply)
        match fault.kind:
            case Kind.DIE:
                self._die(DIED_ON_PURPOSE)
            case Kind.STALL:
                time.sleep(fault.seconds)
            case Kind.REFUSE if silent and fault.status == HTTPStatus.INTERNAL_SERVER_ERROR:
                return Outcome(internal(fault.text, silent=True))
            case Kind.REFUSE:
                return Outcome(error(fault.status, fault.text))
            case Kind.GARBAGE:
                return Outcome(Reply(HTTPStatus.OK, b"<html>\xff not what you asked for", "text/html"))
            case _:
                return Outcome(reply, fault)
        return Outcome(reply)


def _find(request: Request, settings: EngineSettings) -> Route | Reply:
    """The route, or the web framework's refusal."""
    fitting = [route for route in ROUTES if route.path == request.path and route.exists(settings)]
    if not fitting:
        return detail(HTTPStatus.NOT_FOUND)
    found = next((route for route in fitting if route.method == request.method), None)
    return found or detail(HTTPStatus.METHOD_NOT_ALLOWED)


def _guarded(work: Callable[[], Reply], *, silent: bool) -> Reply:
    """Turn what *work* raises into a reply."""
    try:
        return work()
    except Problem as problem:
        return problem.reply
    except (ConfigurationError, msgspec.MsgspecError) as wrong:
        return error(HTTPStatus.BAD_REQUEST, str(wrong))
    except (EngineDead, CallFailed) as failed:
        return internal(str(failed), silent=silent)
    except Exception as failed:  # noqa: BLE001 - the last resort of every web server
        return internal(str(failed), silent=silent)


Switch = Callable[[Application, Request], Reply]

_SWITCHES: dict[tuple[str, str], Switch] = {
    ("POST", "/_reset"): Application.reset,
    ("POST", "/_faults"): Application.set_faults,
    ("GET", "/_faults"): Application.faults,
    ("GET", "/_calls"): Application.calls,
    ("GET", "/_weights"): Application.weights,
}
"""What a test may turn and read, besides what vLLM offers."""
