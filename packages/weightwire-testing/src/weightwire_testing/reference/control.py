"""The routes that a trainer calls. Each asks the core, and so waits behind whatever holds it."""

from __future__ import annotations

import msgspec
from weightwire.messages import PauseMode

from weightwire_testing.reference import bodies
from weightwire_testing.reference.engine import Engine
from weightwire_testing.reference.exchange import Reply, Request, bad_request, ok
from weightwire_testing.reference.worker import Worker


def pause(engine: Engine, request: Request) -> Reply:
    """Stop generation."""
    mode = bodies.pause_mode(request, engine.release)
    engine.core.pause(mode, clear_cache=bodies.flag(request, "clear_cache", default=True))
    return ok({"status": "paused"})


def resume(engine: Engine, _request: Request) -> Reply:
    """Go on."""
    engine.core.resume()
    return ok({"status": "resumed"})


def is_paused(engine: Engine, _request: Request) -> Reply:
    """Whether it is paused; a sleeping engine is."""
    core = engine.core
    return ok({"is_paused": core.call(lambda: core.paused is not None or core.sleeping)})


def is_sleeping(engine: Engine, _request: Request) -> Reply:
    """Whether it sleeps; vLLM, up to 0.33, says true of a paused engine too."""
    core = engine.core
    return ok({"is_sleeping": core.call(lambda: core.sleeping or core.paused is not None)})


def sleep(engine: Engine, request: Request) -> Reply:
    """Put the engine to sleep."""
    core = engine.core
    core.pause(PauseMode.ABORT, clear_cache=True)
    core.call(lambda: setattr(core, "sleeping", True))
    level = int(request.query.get("level", "1"))
    return ok({"status": "sleeping", "level": level}) if engine.release.since(32) else Reply(200)


def wake_up(engine: Engine, _request: Request) -> Reply:
    """Wake it."""
    core = engine.core
    core.call(lambda: setattr(core, "sleeping", False))
    core.resume()
    return ok({"status": "awake", "tags": None}) if engine.release.since(32) else Reply(200)


def reset_prefix_cache(engine: Engine, _request: Request) -> Reply:
    """Forget the keys and values of prompts."""
    engine.core.call(engine.core.clear_caches)
    return ok({"success": True}) if engine.release.since(32) else Reply(200)


def abort_requests(engine: Engine, request: Request) -> Reply:
    """End some requests, or all."""
    ids = bodies.by_hand(request).get("request_ids", msgspec.Raw(b"null"))
    keys = msgspec.json.decode(ids, type=frozenset[str] | None)
    return ok({"status": "aborted", "aborted": engine.core.abort(keys or None)})


def collective_rpc(engine: Engine, request: Request) -> Reply:
    """Call ``check_health`` on every worker; other methods are not offered here."""
    body = bodies.by_hand(request)
    if "method" not in body:
        raise bad_request("Missing 'method' in request body")
    method = msgspec.json.decode(body["method"], type=str)
    if method != "check_health":
        raise AttributeError(f"the reference engine offers check_health only, not {method!r}")
    engine.core.collective_rpc(Worker.check_health)
    return ok({"results": [None] * engine.settings.workers})


def init(engine: Engine, request: Request) -> Reply:
    """Have every worker join the sender."""
    init_info = bodies.payload(request, "init_info", release=engine.release)
    engine.core.collective_rpc(lambda worker: worker.init_weight_transfer_engine(init_info))
    return ok({"message": "Weight transfer initialized"})


def start(engine: Engine, request: Request) -> Reply:
    """Open an update."""
    checkpoint_format = True
    if engine.release.start_needs_body:
        given = bodies.by_hand(request).get("is_checkpoint_format", msgspec.Raw(b"true"))
        checkpoint_format = bool(msgspec.json.decode(given))
    engine.core.collective_rpc(lambda worker: worker.start_weight_update(checkpoint_format=checkpoint_format))
    return ok({"message": "Weight update started"})


def start_draft(engine: Engine, _request: Request) -> Reply:
    """Refuse: there is no draft model."""
    engine.core.collective_rpc(Worker.start_draft_weight_update)
    return ok({"message": "Draft weight update started"})


def update(engine: Engine, request: Request) -> Reply:
    """Receive and load. Answers when every worker has."""
    update_info = bodies.payload(request, "update_info", release=engine.release, lists=engine.release.since(29))
    engine.core.collective_rpc(lambda worker: worker.update_weights(update_info))
    return ok({"message": "Weights updated"})


def finish(engine: Engine, request: Request) -> Reply:
    """Close the update; a version is set only after success."""
    version = bodies.text(request, "weight_version", required=False) if engine.release.since(27) else None
    engine.core.collective_rpc(Worker.finish_weight_update)
    if version is not None:
        _set_version(engine, version)
    return ok({"message": "Weight update finished"})


def shutdown(engine: Engine, _request: Request) -> Reply:
    """Have every worker leave the sender."""
    engine.core.collective_rpc(Worker.shutdown_weight_transfer_engine)
    return ok({"message": "Weight transfer shut down"})


def update_weight_version(engine: Engine, request: Request) -> Reply:
    """Set the version that the server reports."""
    version = bodies.text(request, "new_version", required=True) or ""
    _set_version(engine, version)
    return ok({"success": True, "new_version": version})


def weight_info(engine: Engine, _request: Request) -> Reply:
    """The version it holds; ``default`` until one was set."""
    core = engine.core
    return ok({"weight_version": core.call(lambda: core.weight_version)})


def _set_version(engine: Engine, version: str) -> None:
    core = engine.core
    core.call(lambda: setattr(core, "weight_version", version))
