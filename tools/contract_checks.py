"""What weightwire-vllm sends and believes, held against one vLLM's facts."""

from __future__ import annotations

from collections.abc import Iterator

from contract_rules import GETS, PLAN, SHARED_POSTS, Contract, beliefs, gets, joining, pausing, payload, rest, sent
from weightwire.versions import release
from weightwire.vllm.behaviour import behaviour
from weightwire.vllm.posts import Post
from weightwire_vllm import wire
from weightwire_vllm.control import ALREADY_OPEN, NEVER_OPENED
from weightwire_vllm.dialect import choose


def breaches(contract: Contract) -> list[str]:
    """Everything that we send or believe and that does not hold for that version."""
    version = {"/weight_info": ()} if behaviour(contract.release).keeps_weight_version else {}
    return [
        *gets(contract, GETS | version),
        *sent(contract, posts(contract.version)),
        *_payloads(contract),
        *beliefs(contract),
        *_recovery(contract),
        *pausing(contract),
        *rest(contract),
    ]


def posts(version: str) -> list[Post]:
    """Every POST that we send to a server of that version."""
    dialect, known = choose(version), behaviour(release(version))
    found = [*SHARED_POSTS, dialect.start(), dialect.finish("7"), dialect.finish(None)]
    found += [dialect.init(joining()), dialect.update(PLAN, PLAN.windows[0])]
    found += [wire.mark("weightwire:updating:r")] if known.keeps_weight_version else []
    found += [wire.SHUTDOWN] if known.shuts_engine_down else []
    return found


def _payloads(contract: Contract) -> Iterator[str]:
    dialect = choose(contract.version)
    yield from payload(contract, "init_info", dialect.init(joining()))
    yield from payload(contract, "update_info", dialect.update(PLAN, PLAN.windows[0]))
    if behaviour(contract.release).takes_unique_id:
        yield from payload(contract, "init_info", dialect.init(joining(bytes(128))))


def _recovery(contract: Contract) -> Iterator[str]:
    """The words by which a flush recognises that there is nothing to do."""
    texts = [("worker.start.refusals", ALREADY_OPEN)]
    if not behaviour(contract.release).failed_update_closes_it:
        texts.append(("worker.finish.refusals", NEVER_OPENED))
    for name, text in texts:
        if text not in str(contract.fact(name)):
            yield f"{name}: we look for {text!r}, and it says {contract.fact(name)}"
