"""What an engine with vLLM's completions API says of a few tokens."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import requests
from weightwire.errors import EngineRefused, GarbledReply

SECONDS = 60.0
"""The longest that one answer may take."""

REPLICA_HEADER = "X-data-parallel-rank"
"""Chooses the replica of a data-parallel server."""


class _Entry(msgspec.Struct):
    logprob: float


class _Tokens(msgspec.Struct):
    tokens: list[str]


class _Choice(msgspec.Struct):
    prompt_logprobs: list[dict[str, _Entry] | None] | None = None
    logprobs: _Tokens | None = None


class _Reply(msgspec.Struct):
    choices: list[_Choice]


def score(url: str, token_ids: Sequence[int], *, replica: int | None = None) -> list[float]:
    """The log-probability of each token but the first, given those before it.

    Raises:
        EngineRefused: the engine answered with an error.
        GarbledReply: it answered something else.
    """
    body: dict[str, object] = {"prompt": list(token_ids), "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
    rows = _ask(url, body, replica).prompt_logprobs
    if rows is None or len(rows) != len(token_ids):
        raise GarbledReply("The engine was asked for a log-probability of each token, and answered otherwise.")
    pairs = zip(token_ids[1:], rows[1:], strict=True)
    return [row[str(token)].logprob for token, row in pairs if row is not None]


def greedy(url: str, token_ids: Sequence[int], *, n: int, replica: int | None = None) -> list[int]:
    """The *n* tokens that the engine finds most likely to follow, one by one.

    Raises:
        EngineRefused: the engine answered with an error.
        GarbledReply: it answered something else.
    """
    body: dict[str, object] = {"prompt": list(token_ids), "max_tokens": n, "temperature": 0, "ignore_eos": True}
    found = _ask(url, body | {"logprobs": 0, "return_tokens_as_token_ids": True}, replica).logprobs
    if found is None:
        raise GarbledReply("The engine was asked for tokens as numbers, and gave none.")
    return [int(token.removeprefix("token_id:")) for token in found.tokens]


def _ask(url: str, body: dict[str, object], replica: int | None) -> _Choice:
    headers = {} if replica is None else {REPLICA_HEADER: str(replica)}
    with requests.Session() as session:
        session.trust_env = False
        reply = session.post(f"{url}/v1/completions", json=body, headers=headers, timeout=SECONDS)
    if reply.status_code != requests.codes.ok:
        error = EngineRefused(f"The engine answered {reply.status_code} to a completion.", server_text=reply.text)
        error.status = reply.status_code
        raise error.at(engine=url)
    try:
        return msgspec.json.decode(reply.content, type=_Reply).choices[0]
    except (msgspec.DecodeError, IndexError) as error:
        raise GarbledReply(f"The engine answered {reply.content[:200]!r} to a completion.").at(engine=url) from error
