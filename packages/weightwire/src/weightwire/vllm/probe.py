"""Finding out what a vLLM server is and how it stands. GETs only: nothing here changes anything."""

from __future__ import annotations

import msgspec

from weightwire.deadlines import Deadline
from weightwire.engine_wire import BACKEND
from weightwire.errors import ConfigurationError, DeadlineExceeded, StateError
from weightwire.messages import EngineInfo, EngineKind
from weightwire.states import MARK, RECOVERED, EngineState
from weightwire.versions import release
from weightwire.vllm import nccl, setups
from weightwire.vllm.asleep import asleep
from weightwire.vllm.behaviour import Behaviour, behaviour, limits
from weightwire.vllm.client import Client
from weightwire.vllm.replies import NOT_FOUND, OK, decode, refused
from weightwire.vllm.server_info import ServerInfo

ANSWERS_WITHIN = 30.0
"""Seconds in which a healthy engine answers between two steps, also while a first request compiles."""

ANSWERS_SHARE = 0.8
"""And the part of the caller's time that it may take, so that there is some left to say what is wrong."""


class _WorldSize(msgspec.Struct):
    world_size: int


class _Paused(msgspec.Struct):
    is_paused: bool


class _Sleeping(msgspec.Struct):
    is_sleeping: bool


class _WeightInfo(msgspec.Struct):
    weight_version: str


class Found(msgspec.Struct, frozen=True):
    """What a probe found.

    Attributes:
        info: for the session.
        workers: workers of one replica (TP × PP): how many replies belong to one call.
    """

    info: EngineInfo
    workers: int


def probe(client: Client, version: str, deadline: Deadline, *, control_plane: str, dialect: str) -> Found:
    """Ask the server everything.

    Args:
        client: to the server.
        version: what it says it is.
        deadline: by which all of it must be answered.
        control_plane: the registered name of the one that asks.
        dialect: the wire form it speaks to this release.

    Raises:
        ConfigurationError, CompatibilityError: its set-up can't take weights.
        StateError: it sleeps, or its engine does not answer.
        EngineRefused, GarbledReply, EngineUnreachable, DeadlineExceeded: a call failed.
    """
    world_size = _world_size(client, version, deadline)
    server = _server_info(client, deadline)
    number = release(version)
    kind = setups.kind(server, version)
    setups.refuse_unsafe(server, version)
    is_paused = paused(client, deadline)
    refuse_asleep(client, deadline, is_paused=is_paused)
    held = weight_version(client, behaviour(number), deadline)
    config = server.vllm_config
    info = EngineInfo(
        url=client.url,
        engine="vllm",
        version=version,
        dialect=dialect,
        control_plane=control_plane,
        backend=_backend(kind),
        kind=kind,
        world_size=world_size,
        limits=limits(number, kind),
        paused=is_paused,
        state=_state(held, is_paused=is_paused),
        weight_version=held,
        model=config.model_config.model,
        dtype=config.model_config.dtype.removeprefix("torch."),
        device=config.device_config.device_type or (config.device_config.device or "").partition(":")[0],
        tied_head=False if config.model_config.word_embeddings_untied_by_checkpoint else None,
        nccl_version=nccl.version(server),
        variables=nccl.variables(server),
        notes=(*_pause_notes(held, is_paused=is_paused), *setups.notes(config, version, engine=kind)),
    )
    return Found(info, config.parallel_config.world_size)


def paused(client: Client, deadline: Deadline) -> bool:
    """Ask the engine itself: the web server goes on answering while the engine waits in a transfer, or is dead.

    Raises:
        StateError: the engine does not answer.
    """
    patience = deadline.at_most(min(ANSWERS_WITHIN, ANSWERS_SHARE * deadline.remaining()))
    try:
        return client.ask("/is_paused", _Paused, patience).is_paused
    except DeadlineExceeded as error:
        raise StateError(
            f"The web server at {client.url} answers, but its engine did not within {patience.seconds:.3g} s: it waits "
            "in somebody's transfer, or hangs.",
            hint="let the other transfer end; if there is none, restart the server",
        ).at(engine=client.url) from error


def refuse_asleep(client: Client, deadline: Deadline, *, is_paused: bool) -> None:
    """Raise if the engine sleeps: its weights are not where an update would put them.

    Raises:
        StateError: it sleeps.
    """
    reply = client.look("/is_sleeping", deadline)
    if reply.status != OK or not decode(reply, _Sleeping, call=f"GET {client.url}/is_sleeping").is_sleeping:
        return
    if not is_paused or asleep(client.look("/metrics", deadline).text):
        raise StateError(
            f"The engine at {client.url} is asleep.",
            hint=f"wake it up: curl -X POST {client.url}/wake_up",
        ).at(engine=client.url)


def weight_version(client: Client, known: Behaviour, deadline: Deadline) -> str | None:
    """The version the server says it holds; None where it keeps none."""
    if not known.keeps_weight_version:
        return None
    return client.ask("/weight_info", _WeightInfo, deadline).weight_version


def _world_size(client: Client, version: str, deadline: Deadline) -> int:
    """Also find out whether the routes are there: this one and the update's are switched on by the same variable."""
    reply = client.look("/get_world_size", deadline)
    if reply.status == NOT_FOUND:
        raise ConfigurationError(
            f"vLLM {version} answers at {client.url}, but its weight-transfer routes are switched off.",
            hint=f"start it with VLLM_SERVER_DEV_MODE=1 in its environment; {setups.advice(version)}",
        ).at(engine=client.url)
    if reply.status != OK:
        raise refused(reply, f"GET {client.url}/get_world_size").at(engine=client.url)
    if client.look("/update_weights", deadline).status == NOT_FOUND:
        raise ConfigurationError(
            f"vLLM {version} answers at {client.url} in dev mode, but without its weight-transfer routes: its Rust "
            "frontend, before 0.33, has none.",
            hint="start it without VLLM_USE_RUST_FRONTEND",
        ).at(engine=client.url)
    return decode(reply, _WorldSize, call=f"GET {client.url}/get_world_size").world_size


def _server_info(client: Client, deadline: Deadline) -> ServerInfo:
    return client.ask("/server_info", ServerInfo, deadline, params={"config_format": "json"})


def _backend(kind: EngineKind) -> str:
    """The name that data planes know the engine by, whatever it is served as."""
    return setups.STOCK_BACKEND if kind is EngineKind.STOCK else BACKEND


def _state(held: str | None, *, is_paused: bool) -> EngineState:
    """Torn where a round left its mark, or, where no marks are kept, where the engine is paused and nobody owns it."""
    torn = is_paused if held is None else held.startswith(MARK)
    return EngineState.TORN if torn else EngineState.WHOLE


def _pause_notes(held: str | None, *, is_paused: bool) -> tuple[str, ...]:
    if not is_paused:
        return ()
    if held is None:
        return (
            "Paused, and vLLM before 0.27 keeps no version that could say why: it counts as torn, recovered or not.",
        )
    if held == RECOVERED:
        return ("Paused, and recovered: no update is half done in it any more. A full push makes it whole.",)
    return ("Paused.",)
