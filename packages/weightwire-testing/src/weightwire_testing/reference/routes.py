"""The table of routes: which release has which, which fault strikes there, and who answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weightwire_testing.faults import Phase
from weightwire_testing.reference import completions, control, facts
from weightwire_testing.reference.engine import Engine
from weightwire_testing.reference.exchange import Reply, Request, ok
from weightwire_testing.reference.settings import EngineSettings

Handler = Callable[[Engine, Request], Reply]


@dataclass(frozen=True, slots=True)
class Route:
    """One route.

    Attributes:
        method: its verb.
        path: its path.
        handler: who answers.
        phase: what faults call it; None where none strike.
        since: the first 0.x that has it.
        dev: it exists in dev mode only.
        typed_since: the first 0.x whose OpenAPI shows its body; None where it has none, or never shows.
    """

    method: str
    path: str
    handler: Handler
    phase: Phase | None = None
    since: int = 17
    dev: bool = True
    typed_since: int | None = None

    def exists(self, settings: EngineSettings) -> bool:
        """Whether a server of this set-up has it."""
        return settings.release.since(self.since) and (settings.dev_mode or not self.dev)


def _openapi(engine: Engine, _request: Request) -> Reply:
    return ok(openapi(engine.settings))


ROUTES = (
    Route("GET", "/openapi.json", _openapi, dev=False),
    Route("GET", "/version", facts.version, Phase.CONNECT, dev=False),
    Route("GET", "/health", facts.health, Phase.HEALTH, dev=False),
    Route("GET", "/metrics", facts.metrics, dev=False),
    Route("GET", "/v1/models", facts.models, dev=False),
    Route("POST", "/v1/completions", completions.completions, Phase.COMPLETIONS, dev=False, typed_since=17),
    Route("GET", "/server_info", facts.server_info, Phase.SERVER_INFO),
    Route("GET", "/get_world_size", facts.world_size, Phase.WORLD_SIZE),
    Route("GET", "/is_paused", control.is_paused, Phase.IS_PAUSED),
    Route("GET", "/is_sleeping", control.is_sleeping),
    Route("POST", "/sleep", control.sleep),
    Route("POST", "/wake_up", control.wake_up),
    Route("POST", "/reset_prefix_cache", control.reset_prefix_cache),
    Route("POST", "/collective_rpc", control.collective_rpc),
    Route("POST", "/pause", control.pause, Phase.PAUSE),
    Route("POST", "/resume", control.resume, Phase.RESUME),
    Route("POST", "/init_weight_transfer_engine", control.init, Phase.INIT, typed_since=32),
    Route("POST", "/update_weights", control.update, Phase.UPDATE, typed_since=32),
    Route("POST", "/start_weight_update", control.start, Phase.START, since=21),
    Route("POST", "/finish_weight_update", control.finish, Phase.FINISH, since=21, typed_since=27),
    Route("POST", "/start_draft_weight_update", control.start_draft, since=26),
    Route("POST", "/abort_requests", control.abort_requests, since=26),
    Route("POST", "/update_weight_version", control.update_weight_version, Phase.MARK, since=27, typed_since=27),
    Route("GET", "/weight_info", control.weight_info, Phase.WEIGHT_INFO, since=27),
    Route("POST", "/shutdown_weight_transfer_engine", control.shutdown, Phase.SHUTDOWN, since=32),
)


def openapi(settings: EngineSettings) -> dict[str, object]:
    """What ``/openapi.json`` shows: the paths, and which of them have a body."""
    paths: dict[str, dict[str, object]] = {}
    for route in ROUTES:
        if not route.exists(settings) or route.handler is _openapi:
            continue
        operation: dict[str, object] = {"operationId": route.path.strip("/").replace("/", "_")}
        if route.typed_since is not None and settings.release.since(route.typed_since):
            operation["requestBody"] = {"content": {"application/json": {"schema": {}}}}
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {"openapi": "3.1.0", "info": {"title": "FastAPI", "version": "0.1.0"}, "paths": paths}
