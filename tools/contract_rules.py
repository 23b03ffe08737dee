"""How something we send or believe is held against a vLLM's facts, whichever wire form it belongs to.

Every breach begins with the id of the fact that it is about. Nothing here talks to a server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import cast

import msgspec
from contract_facts import Facts
from contract_syntax import Json
from weightwire.messages import (
    CachePolicy,
    ChannelRequest,
    EngineKind,
    Manifest,
    PackGeometry,
    PauseMode,
    Rendezvous,
    TensorMeta,
    TransferPlan,
    Window,
)
from weightwire.versions import release
from weightwire.vllm import posts
from weightwire.vllm.behaviour import behaviour, limits
from weightwire.vllm.posts import Post

GETS: dict[str, tuple[str, ...]] = {
    "/version": (),
    "/get_world_size": (),
    "/server_info": ("config_format",),
    "/is_paused": (),
    "/is_sleeping": (),
}
"""What is asked of every release, and with which parameters."""

SHARED_POSTS = (
    *(posts.pause(mode, cache) for mode in PauseMode for cache in CachePolicy),
    posts.RESUME,
    posts.CHECK_HEALTH,
)
TYPES: dict[str, type] = {"int": int, "str": str, "bool": bool, "str | None": str, "int | None": int}
STORE_KEY = "broadcast_from/{…}/{…}"
ONE = 1
"""The least number of buffers: what a receiver gets whose packs race."""

MANIFEST = Manifest((TensorMeta("a", "bfloat16", (2, 3)), TensorMeta("b", "float32", ())), ((0, 2),))
PLAN = TransferPlan(
    round_id="r",
    version="7",
    manifest=MANIFEST,
    windows=(Window(0, 0, 2),),
    geometry=PackGeometry(packed=True, buffer_bytes=1 << 20, num_buffers=ONE),
)


class Contract:
    """The facts of one version; keeps account of which were asked for."""

    def __init__(self, version: str, facts: Facts) -> None:
        """Nothing was asked for yet."""
        self.version = version
        self.release = release(version)
        self.facts = facts
        self.asked: set[str] = set()

    def fact(self, name: str) -> Json:
        """One fact; None where it is absent."""
        self.asked.add(name)
        return self.facts.get(name)

    def table(self, name: str) -> Mapping[str, Json]:
        """One fact that is a table; empty where it is absent."""
        return as_table(self.fact(name))


def as_table(fact: Json) -> Mapping[str, Json]:
    """*fact* if it is a table, else an empty one."""
    return fact if isinstance(fact, dict) else {}


def joining(unique_id: bytes = b"") -> ChannelRequest:
    """A part in a channel: over a store, or by a unique id."""
    meeting = Rendezvous(address="127.0.0.1", port=29500, world_size=2, unique_id=unique_id)
    return ChannelRequest(rendezvous=meeting, rank_offset=1, geometry=PLAN.geometry, manifest=MANIFEST)


def gets(contract: Contract, paths: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """Breaches of what we GET."""
    for path, params in paths.items():
        name = f"route.{path}"
        route = contract.table(name)
        if route.get("verb") != "GET":
            yield f"{name}: we GET it, and it is {route.get('verb')}"
        for unknown in set(params) - as_table(route.get("query")).keys():
            yield f"{name}: we send the parameter {unknown!r}, which it does not know"


def sent(contract: Contract, sent: Iterable[Post]) -> Iterator[str]:
    """Breaches of what we POST: verb, query, body and the success we wait for."""
    for post in sent:
        name = f"route.{post.path}"
        route = contract.table(name)
        if route.get("verb") != "POST":
            yield f"{name}: we POST to it, and it is {route.get('verb')}"
            continue
        for unknown in post.params.keys() - as_table(route.get("query")).keys():
            yield f"{name}: we send the parameter {unknown!r}, which it does not know"
        yield from (f"{name}: {what}" for what in _body(post, as_table(route.get("body"))))
        if not _answers(post, route.get("success")):
            yield f"{name}: we expect {post.answer} in a success, and it answers {route.get('success')}"


def payload(contract: Contract, what: str, post: Post) -> Iterator[str]:
    """Breaches of what is inside ``init_info`` or ``update_info``."""
    name = f"nccl.{what}.fields"
    inside = msgspec.json.decode(post.body or b"{}", type=dict[str, dict[str, object]])[what]
    yield from (f"{name}: {breach}" for breach in _keys(inside, contract.table(name)))


def _body(post: Post, declared: Mapping[str, Json]) -> Iterator[str]:
    if post.body is None:
        if declared.get("required"):
            yield "it wants a body, and we send none"
        return
    if declared.get("kind") == "none":
        yield "it takes no body, and we send one"
    keys = as_table(declared.get("keys"))
    yield from _keys(msgspec.json.decode(post.body, type=dict[str, object]), keys)


def _keys(given: Mapping[str, object], declared: Mapping[str, Json]) -> Iterator[str]:
    """Unknown keys, required ones that are missing, and values of another simple type."""
    yield from (f"we send {key!r}, which it does not know" for key in sorted(given.keys() - declared.keys()))
    for key, described in declared.items():
        field = as_table(described)
        if key not in given:
            if field.get("required"):
                yield f"it requires {key!r}, which we do not send"
        elif not isinstance(given[key], TYPES.get(str(field.get("type")), object)):
            yield f"{key!r} is a {field.get('type')}, and we send {given[key]!r}"


def _answers(post: Post, bodies: Json) -> bool:
    key, value = post.answer
    tables = [as_table(body) for body in bodies] if isinstance(bodies, list) else []
    return any(key in body and value in {None, cast("str", body[key])} for body in tables)


def beliefs(contract: Contract) -> Iterator[str]:
    """The marked lines of the table in :mod:`weightwire.vllm.behaviour`."""
    for name, believed, found in (*_capabilities(contract), *_receiver(contract)):
        if believed != found:
            yield f"{name}: we believe {believed}, and it says {found}"


def _capabilities(contract: Contract) -> Iterator[tuple[str, bool, Json]]:
    known = behaviour(contract.release)
    for name, believed in (
        ("errors.are_told", known.tells_errors),
        ("nccl.counts_replicas", known.counts_replicas),
        ("worker.update.waits_for_the_device", known.safe_packs),
        ("worker.update.is_all_of_it", not known.opens_updates),
        ("backend.takes_any_name", known.any_backend_name),
        ("worker.update.failure_closes_the_update", known.failed_update_closes_it),
        ("pause.clears_the_connector", known.reset_drops_external_caches),
        ("worker.shuts_the_engine_down", known.shuts_engine_down),
        ("packed.scalars_fail", not known.packed_scalars),
    ):
        yield name, believed, contract.fact(name)
    yield "route./abort_requests", known.aborts_requests, bool(contract.fact("route./abort_requests"))
    yield "route./start_weight_update", known.opens_updates, bool(contract.fact("route./start_weight_update"))
    yield "weight_version.at_start", known.keeps_weight_version, contract.fact("weight_version.at_start") == "default"


def _receiver(contract: Contract) -> Iterator[tuple[str, bool, Json]]:
    known = behaviour(contract.release)
    functions = contract.fact("packed.functions")
    init, update = contract.table("nccl.init_info.fields"), contract.table("nccl.update_info.fields")
    optional = as_table(update.get("names")).get("required") is False
    fenced = isinstance(functions, list) and "receive_and_load" in functions
    yield "nccl.init_info.fields", known.takes_unique_id, "nccl_unique_id_b64" in init
    yield "packed.functions", known.fenced_packs, fenced
    yield "nccl.update_info.fields", known.empty_update_reuses_names, optional


def pausing(contract: Contract) -> Iterator[str]:
    """What both forms rely on around a pause."""
    for mode in PauseMode:
        if repr(mode.value) not in str(contract.fact("pause.modes")):
            yield f"pause.modes: we send {mode.value!r}, and it takes {contract.fact('pause.modes')}"
    if "is_scheduler_paused()" not in str(contract.fact("sleep.is_sleeping")):
        yield "sleep.is_sleeping: it no longer says true for a paused engine; asleep.py may be simpler now"
    if not contract.fact("sleep.metric"):
        yield "sleep.metric: the gauge that tells sleeping from paused is gone"


def rest(contract: Contract) -> Iterator[str]:
    """What else both forms rely on."""
    if "nccl" not in str(contract.fact("backend.registered")):
        yield "backend.registered: there is no engine 'nccl'"
    if contract.fact("rendezvous.store_keys") != [STORE_KEY]:
        yield f"rendezvous.store_keys: the data plane writes {STORE_KEY}"
    stock = limits(contract.release, EngineKind.STOCK)
    default = contract.fact("nccl.default_packed_num_buffers")
    if not isinstance(default, int) or stock.num_buffers > default:
        yield f"nccl.default_packed_num_buffers: we would use {stock.num_buffers}, and it uses {default}"
    if not contract.fact("worker.check_health"):
        yield "worker.check_health: we call it to read replies out, and it is gone"
    if not contract.fact("server_info.shows_declared_variables"):
        yield "server_info.shows_declared_variables: our engine announces itself by one, and it would not show"
    missing = sorted({"data_parallel_size", "is_moe_model"} - set(_names(contract.fact("config.parallel.fields"))))
    if missing:
        yield f"config.parallel.fields: we read {', '.join(missing)}, which it does not tell"


def _names(fact: Json) -> list[str]:
    return [str(item) for item in fact] if isinstance(fact, list) else []
