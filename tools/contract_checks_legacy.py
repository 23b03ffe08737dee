"""What weightwire-vllm-legacy sends and believes, held against one vLLM's facts."""

from __future__ import annotations

from collections.abc import Iterator

from contract_rules import (
    GETS,
    PLAN,
    SHARED_POSTS,
    Contract,
    as_table,
    beliefs,
    gets,
    joining,
    pausing,
    payload,
    rest,
    sent,
)
from weightwire.vllm.posts import Post
from weightwire_vllm_legacy.dialect_0_17 import ToStock

CLOSED_BY_ONE_CALL = "is_checkpoint_format"


def breaches(contract: Contract) -> list[str]:
    """Everything that we send or believe and that does not hold for that version."""
    return [
        *gets(contract, GETS),
        *sent(contract, posts()),
        *_payloads(contract),
        *beliefs(contract),
        *pausing(contract),
        *rest(contract),
    ]


def posts() -> list[Post]:
    """Every POST that we send, the same to all versions of the two-call form."""
    calls = ToStock()
    return [*SHARED_POSTS, calls.init(joining()), calls.update(PLAN, PLAN.windows[0]), calls.flush(PLAN)]


def _payloads(contract: Contract) -> Iterator[str]:
    calls = ToStock()
    yield from payload(contract, "init_info", calls.init(joining()))
    for post in (calls.update(PLAN, PLAN.windows[0]), calls.flush(PLAN)):
        yield from payload(contract, "update_info", post)
    default = as_table(contract.table("nccl.update_info.fields").get(CLOSED_BY_ONE_CALL)).get("default")
    if default is not True:
        yield f"nccl.update_info.fields: to our engine {CLOSED_BY_ONE_CALL} goes unsaid, and its default is {default}"
