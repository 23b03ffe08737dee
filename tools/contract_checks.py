"""What weightwire-vllm sends and believes, held against one vLLM's facts.

Every breach begins with the id of the fact that it is about. Nothing here talks to a server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
from weightwire_vllm import wire
from weightwire_vllm.behaviour import behaviour, limits
from weightwire_vllm.control import ALREADY_OPEN, NEVER_OPENED
from weightwire_vllm.dialect import choose
from weightwire_vllm.wire import Post

GETS = {"/version": (), "/get_world_size": (), "/server_info": ("config_format",), "/is_paused": (), "/is_sleeping": ()}
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


def breaches(contract: Contract) -> list[str]:
    """Everything that we send or believe and that does not hold for that version."""
    checks: list[Callable[[Contract], Iterator[str]]] = [_gets, _posts, _payloads, _behaviour, _recovery, _rest]
    return [breach for check in checks for breach in check(contract)]


def _gets(contract: Contract) -> Iterator[str]:
    version = {"/weight_info": ()} if behaviour(contract.release).keeps_weight_version else {}
    for path, params in (GETS | version).items():
        name = f"route.{path}"
        route = contract.table(name)
        if route.get("verb") != "GET":
            yield f"{name}: we GET it, and it is {route.get('verb')}"
        for unknown in set(params) - as_table(route.get("query")).keys():
            yield f"{name}: we send the parameter {unknown!r}, which it does not know"


def posts(version: str) -> list[Post]:
    """Every POST that we send to a server of that version."""
    dialect, known = choose(version), behaviour(release(version))
    found = [wire.pause(mode, cache) for mode in PauseMode for cache in CachePolicy]
    found += [wire.RESUME, wire.CHECK_HEALTH, dialect.start(), dialect.finish("7"), dialect.finish(None)]
    found += [dialect.init(joining()), dialect.update(PLAN, PLAN.windows[0])]
    found += [wire.mark("weightwire:updating:r")] if known.keeps_weight_version else []
    found += [wire.SHUTDOWN] if known.shuts_engine_down else []
    return found


def joining(unique_id: bytes = b"") -> ChannelRequest:
    """A part in a channel: over a store, or by a unique id."""
    meeting = Rendezvous(address="127.0.0.1", port=29500, world_size=2, unique_id=unique_id)
    return ChannelRequest(rendezvous=meeting, rank_offset=1, geometry=PLAN.geometry, manifest=MANIFEST)


def _posts(contract: Contract) -> Iterator[str]:
    for post in posts(contract.version):
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


def _body(post: Post, declared: Mapping[str, Json]) -> Iterator[str]:
    if post.body is None:
        if declared.get("required"):
            yield "it wants a body, and we send none"
        return
    if declared.get("kind") == "none":
        yield "it takes no body, and we send one"
    keys = as_table(declared.get("keys"))
    yield from _keys(msgspec.json.decode(post.body, type=dict[str, object]), keys)


def _keys(sent: Mapping[str, object], declared: Mapping[str, Json]) -> Iterator[str]:
    """Unknown keys, required ones that are missing, and values of another simple type."""
    yield from (f"we send {key!r}, which it does not know" for key in sorted(sent.keys() - declared.keys()))
    for key, described in declared.items():
        field = as_table(described)
        if key not in sent:
            if field.get("required"):
                yield f"it requires {key!r}, which we do not send"
        elif not isinstance(sent[key], TYPES.get(str(field.get("type")), object)):
            yield f"{key!r} is a {field.get('type')}, and we send {sent[key]!r}"


def _answers(post: Post, bodies: Json) -> bool:
    key, value = post.answer
    tables = [as_table(body) for body in bodies] if isinstance(bodies, list) else []
    return any(key in body and value in {None, cast("str", body[key])} for body in tables)


def _payloads(contract: Contract) -> Iterator[str]:
    dialect = choose(contract.version)
    yield from _inner(contract, "init_info", dialect.init(joining()))
    yield from _inner(contract, "update_info", dialect.update(PLAN, PLAN.windows[0]))
    if behaviour(contract.release).takes_unique_id:
        yield from _inner(contract, "init_info", dialect.init(joining(bytes(128))))


def _inner(contract: Contract, what: str, post: Post) -> Iterator[str]:
    name = f"nccl.{what}.fields"
    sent = msgspec.json.decode(post.body or b"{}", type=dict[str, dict[str, object]])[what]
    yield from (f"{name}: {breach}" for breach in _keys(sent, contract.table(name)))


def _behaviour(contract: Contract) -> Iterator[str]:
    """The marked lines of the table in weightwire_vllm.behaviour."""
    known = behaviour(contract.release)
    names = as_table(contract.table("nccl.update_info.fields").get("names"))
    facts: dict[str, tuple[bool, Json]] = {
        "backend.takes_any_name": (known.any_backend_name, contract.fact("backend.takes_any_name")),
        "worker.update.failure_closes_the_update": (
            known.failed_update_closes_it,
            contract.fact("worker.update.failure_closes_the_update"),
        ),
        "pause.clears_the_connector": (known.reset_drops_external_caches, contract.fact("pause.clears_the_connector")),
        "route./abort_requests": (known.aborts_requests, bool(contract.fact("route./abort_requests"))),
        "weight_version.at_start": (known.keeps_weight_version, contract.fact("weight_version.at_start") == "default"),
        "nccl.init_info.fields": (
            known.takes_unique_id,
            "nccl_unique_id_b64" in contract.table("nccl.init_info.fields"),
        ),
        "worker.shuts_the_engine_down": (known.shuts_engine_down, contract.fact("worker.shuts_the_engine_down")),
        "packed.scalars_fail": (known.packed_scalars, not contract.fact("packed.scalars_fail")),
        "packed.functions": (known.fenced_packs, _fenced(contract.fact("packed.functions"))),
        "nccl.update_info.fields": (known.empty_update_reuses_names, names.get("required") is False),
    }
    for name, (believed, found) in facts.items():
        if believed != found:
            yield f"{name}: we believe {believed}, and it says {found}"


def _fenced(functions: Json) -> bool:
    return isinstance(functions, list) and "receive_and_load" in functions


def _recovery(contract: Contract) -> Iterator[str]:
    """The words by which a flush recognises that there is nothing to do."""
    texts = [("worker.start.refusals", ALREADY_OPEN)]
    if not behaviour(contract.release).failed_update_closes_it:
        texts.append(("worker.finish.refusals", NEVER_OPENED))
    for name, text in texts:
        if text not in str(contract.fact(name)):
            yield f"{name}: we look for {text!r}, and it says {contract.fact(name)}"
    if not contract.fact("worker.check_health"):
        yield "worker.check_health: we call it to read replies out, and it is gone"


def _rest(contract: Contract) -> Iterator[str]:
    for mode in PauseMode:
        if repr(mode.value) not in str(contract.fact("pause.modes")):
            yield f"pause.modes: we send {mode.value!r}, and it takes {contract.fact('pause.modes')}"
    if "is_scheduler_paused()" not in str(contract.fact("sleep.is_sleeping")):
        yield "sleep.is_sleeping: it no longer says true for a paused engine; asleep.py may be simpler now"
    if not contract.fact("sleep.metric"):
        yield "sleep.metric: the gauge that tells sleeping from paused is gone"
    if "nccl" not in str(contract.fact("backend.registered")):
        yield "backend.registered: there is no engine 'nccl'"
    if contract.fact("rendezvous.store_keys") != [STORE_KEY]:
        yield f"rendezvous.store_keys: the data plane writes {STORE_KEY}"
    stock = limits(contract.release, EngineKind.STOCK)
    default = contract.fact("nccl.default_packed_num_buffers")
    if not isinstance(default, int) or stock.num_buffers > default:
        yield f"nccl.default_packed_num_buffers: we would use {stock.num_buffers}, and it uses {default}"
