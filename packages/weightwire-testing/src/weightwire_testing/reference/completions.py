"""``/v1/completions``: token ids in, token ids and log-probabilities out, whole or as a stream of events.

There is no tokenizer: a string stands for its bytes, and a token below 256 is shown as its byte.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus

import msgspec

from weightwire_testing.reference.core import EngineDead
from weightwire_testing.reference.engine import Engine
from weightwire_testing.reference.exchange import Problem, Reply, Request, bad_request, error, invalid, ok
from weightwire_testing.reference.generation import Finished, Sampling, Scored, Sequence

_BYTES = 256
_COUNT = itertools.count()


class _Asked(msgspec.Struct, kw_only=True):
    """The fields of a request that are honoured; others are ignored, as vLLM ignores unknown ones."""

    prompt: str | list[int | str | list[int]]
    model: str | None = None
    max_tokens: int | None = 16
    temperature: float | None = 1.0
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stream: bool = False
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    def sampling(self) -> Sampling:
        """The part that generation reads."""
        return Sampling(
            max_tokens=16 if self.max_tokens is None else self.max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            seed=self.seed or 0,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
        )

    def prompts(self) -> list[list[int]]:
        """Every prompt, in token ids."""
        given = self.prompt
        if isinstance(given, str) or all(isinstance(token, int) for token in given):
            return [_ids(given)]
        return [_ids(prompt) for prompt in given]

    def show(self, token: int) -> str:
        """A token in the reply's text form."""
        if self.return_tokens_as_token_ids:
            return f"token_id:{token}"
        return _text([token])


def completions(engine: Engine, request: Request) -> Reply:
    """Generate."""
    asked = _read(engine, request)
    group = _group(engine, request)
    if engine.release.since(33) and engine.core.paused in {"abort", "wait"}:
        raise Problem(
            error(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "The engine is paused.",
                kind="Service Unavailable",
                code="engine_paused",
            )
        )
    name = f"cmpl-{next(_COUNT):08x}"
    prompts = asked.prompts()
    sequences = [Sequence(ids, asked.sampling(), key=name) for ids in prompts]
    for sequence in sequences:
        engine.core.add(sequence, group)
    head = {"id": name, "object": "text_completion", "created": int(time.time()), "model": engine.settings.served_name}
    if asked.stream:
        return Reply(HTTPStatus.OK, content_type="text/event-stream", stream=_stream(engine, asked, sequences, head))
    choices = [_choice(index, asked, sequence) for index, sequence in enumerate(sequences)]
    return ok(head | {"choices": choices, "usage": _usage(sequences)})


def _read(engine: Engine, request: Request) -> _Asked:
    try:
        asked = msgspec.json.decode(request.body, type=_Asked)
    except msgspec.ValidationError as wrong:
        raise invalid("value_error", "body", message=str(wrong)) from wrong
    except msgspec.DecodeError as wrong:
        raise invalid("json_invalid", "body", message="JSON decode error", found=str(wrong)) from wrong
    if asked.model not in {None, engine.settings.served_name}:
        raise Problem(error(HTTPStatus.NOT_FOUND, f"The model `{asked.model}` does not exist.", kind="NotFoundError"))
    for problem in _problems(engine, asked):
        raise bad_request(problem)
    return asked


def _problems(engine: Engine, asked: _Asked) -> Iterator[str]:
    if asked.n != 1:
        yield "the reference engine gives one choice a prompt"
    if asked.max_tokens is not None and asked.max_tokens < 1:
        yield f"max_tokens must be at least 1, got {asked.max_tokens}."
    if asked.stream and asked.prompt_logprobs is not None:
        yield "`prompt_logprobs` are not available when `stream=True`."
    vocabulary = engine.core.groups[0].workers[0].reload.model.shape.vocab_size
    for ids in asked.prompts():
        if not ids:
            yield "You must provide a prompt"
        elif len(ids) >= engine.max_tokens:
            yield f"This model's maximum context length is {engine.max_tokens} tokens; the prompt has {len(ids)}."
        elif not 0 <= min(ids) <= max(ids) < vocabulary:
            yield f"Token id {max(ids)} is out of vocabulary"


def _group(engine: Engine, request: Request) -> int:
    given = request.headers.get("x-data-parallel-rank", "0")
    if not given.isdigit() or int(given) >= engine.settings.data_parallel:
        raise bad_request(f"data_parallel_rank {given} is out of range")
    return int(given)


def _choice(index: int, asked: _Asked, sequence: Sequence) -> dict[str, object]:
    tokens: list[Scored] = []
    while isinstance(event := sequence.events.get(), Scored):
        tokens.append(event)
    if event.error:
        raise EngineDead(event.error)
    prompt_logprobs = None
    if asked.prompt_logprobs is not None:
        prompt_logprobs = [None, *(_prompt_entry(scored) for scored in sequence.prompt_scores)]
    return {
        "index": index,
        "text": _text([scored.token for scored in tokens]),
        "logprobs": _logprobs(asked, tokens),
        "finish_reason": event.reason,
        "stop_reason": None,
        "token_ids": [scored.token for scored in tokens] if asked.return_token_ids else None,
        "prompt_logprobs": prompt_logprobs,
        "prompt_token_ids": sequence.prompt if asked.return_token_ids else None,
    }


def _stream(engine: Engine, asked: _Asked, sequences: list[Sequence], head: dict[str, object]) -> Iterator[bytes]:
    """Events of one sequence after the other; a reader that goes away aborts them."""
    key = frozenset({str(head["id"])})
    try:
        for index, sequence in enumerate(sequences):
            yield from _events(index, asked, sequence, head)
        yield b"data: [DONE]\n\n"
    finally:
        with suppress(EngineDead):
            engine.core.abort(key)


def _events(index: int, asked: _Asked, sequence: Sequence, head: dict[str, object]) -> Iterator[bytes]:
    while True:
        event = sequence.events.get()
        if isinstance(event, Finished) and event.error:
            failed = {"message": event.error, "type": "InternalServerError", "param": None, "code": 500}
            yield _event({"error": failed})
            return
        tokens = [event] if isinstance(event, Scored) else []
        choice = {
            "index": index,
            "text": _text([scored.token for scored in tokens]),
            "logprobs": _logprobs(asked, tokens) if tokens else None,
            "finish_reason": event.reason if isinstance(event, Finished) else None,
            "stop_reason": None,
            "token_ids": [scored.token for scored in tokens] if asked.return_token_ids else None,
        }
        yield _event(head | {"choices": [choice]})
        if isinstance(event, Finished):
            return


def _event(content: dict[str, object]) -> bytes:
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


def _logprobs(asked: _Asked, tokens: list[Scored]) -> dict[str, object] | None:
    if asked.logprobs is None:
        return None
    texts = [_text([scored.token]) for scored in tokens]
    return {
        "text_offset": [0, *itertools.accumulate(map(len, texts[:-1]))] if texts else [],
        "token_logprobs": [scored.logprob for scored in tokens],
        "tokens": [asked.show(scored.token) for scored in tokens],
        "top_logprobs": [_alternatives(asked, scored) for scored in tokens],
    }


def _alternatives(asked: _Asked, scored: Scored) -> dict[str, float]:
    return {asked.show(token): logprob for token, logprob in ((scored.token, scored.logprob), *scored.top)}


def _prompt_entry(scored: Scored) -> dict[str, dict[str, object]]:
    """A prompt token and its alternatives, by id. A rank counts from 1."""
    rows = [(scored.token, scored.logprob, scored.rank)]
    rows += [(token, logprob, rank) for rank, (token, logprob) in enumerate(scored.top, 1) if token != scored.token]
    return {str(t): {"logprob": p, "rank": rank, "decoded_token": _text([t])} for t, p, rank in rows}


def _usage(sequences: list[Sequence]) -> dict[str, int]:
    prompt = sum(len(sequence.prompt) for sequence in sequences)
    generated = sum(len(sequence.generated) for sequence in sequences)
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def _ids(prompt: object) -> list[int]:
    if isinstance(prompt, str):
        return list(prompt.encode())
    if isinstance(prompt, list):
        return [token for token in prompt if isinstance(token, int)]
    raise bad_request("a list of prompts holds strings or lists of token ids")


def _text(tokens: list[int]) -> str:
    return bytes(token for token in tokens if token < _BYTES).decode("utf-8", "replace")
