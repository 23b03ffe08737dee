"""Requests in flight, and one step of generation for each: forward, log-probabilities, one more token."""

from __future__ import annotations

import queue
from collections import OrderedDict
from dataclasses import dataclass, field

import msgspec
import torch
from torch import Tensor

from weightwire_testing.model import KVCache, TinyLlama

_SEEDS = 2**63  # torch takes no larger one, and clients send one of 63 bits with each request (TRL 1.16)


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How a request is to be continued.

    Attributes:
        max_tokens: tokens to generate.
        temperature: 0 takes the likeliest token.
        seed: of the sampling; 0 unless it is said.
        logprobs: alternatives to report for each generated token; None for no log-probabilities.
        prompt_logprobs: alternatives to report for each token of the prompt; None for none.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    seed: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """A token, how likely it was, and the likeliest ones beside it.

    Attributes:
        token: its id.
        logprob: its log-probability.
        rank: its place among all tokens, from 1.
        top: the likeliest tokens and their log-probabilities, best first.
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request; *error* is set where the engine died."""

    reason: str
    error: str = ""


@dataclass(slots=True, eq=False)
class Sequence:
    """A request: its tokens so far, and a queue of what its reader is told.

    Attributes:
        prompt: token ids.
        sampling: how to go on.
        generated: token ids generated so far.
        prompt_scores: scores of the prompt's tokens from the second on; set before the first token, if asked for.
        cache: keys and values so far; None makes the next step compute all anew.
        events: :class:`Scored` tokens, then one :class:`Finished`.
        key: what ``/abort_requests`` calls it by.
    """

    prompt: list[int]
    sampling: Sampling
    key: str = ""
    generated: list[int] = field(default_factory=list)
    prompt_scores: list[Scored] = field(default_factory=list)
    cache: KVCache | None = None
    events: queue.SimpleQueue[Scored | Finished] = field(default_factory=queue.SimpleQueue)

    def finish(self, reason: str, error: str = "") -> None:
        """Tell the reader that this is all."""
        self.events.put(Finished(reason, error))


class PrefixCache:
    """Keys and values of prompts seen before, so that a new prompt starts behind the longest common prefix.

    It knows nothing of weights: entries of older weights stay until somebody clears it. That is the point.
    """

    _ENTRIES = 16

    def __init__(self) -> None:
        """Start empty."""
        self._entries: OrderedDict[tuple[int, ...], KVCache] = OrderedDict()

    def lookup(self, prompt: list[int]) -> KVCache:
        """The cache of the longest known prefix that leaves at least one token to compute; empty if there is none."""
        best, shared = KVCache(), 0
        for known, cache in self._entries.items():
            pairs = zip(known, prompt[:-1], strict=False)
            common = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(known), len(prompt) - 1))
            if common > shared:
                best, shared = cache, common
        return best.head(shared)

    def remember(self, prompt: list[int], cache: KVCache) -> None:
        """Keep a prompt's cache; the oldest makes room."""
        self._entries[tuple(prompt)] = cache.head(len(prompt))
        while len(self._entries) > self._ENTRIES:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()


@torch.no_grad()
def step(model: TinyLlama, sequence: Sequence, *, prefixes: PrefixCache) -> bool:
    """Generate one token.

    Args:
        model: the model.
        sequence: the request; its events get the token, and the end if this was the last.
        prefixes: consulted and filled at the prompt.

    Returns:
        Whether the request is finished.
    """
    ids = sequence.prompt + sequence.generated
    first = not sequence.generated
    wants_prompt = first and sequence.sampling.prompt_logprobs is not None
    if sequence.cache is None:
        sequence.cache = prefixes.lookup(ids) if first and not wants_prompt else KVCache()
    new = ids[sequence.cache.length :]
    logprobs = model(torch.tensor([new]), sequence.cache)[0].float().log_softmax(-1)
    if first:
        prefixes.remember(sequence.prompt, sequence.cache)
    if wants_prompt:
        rows = zip(logprobs[:-1], sequence.prompt[1:], strict=True)
        sequence.prompt_scores = [_score(row, token, sequence.sampling.prompt_logprobs or 0) for row, token in rows]
    token = _choose(logprobs[-1], sequence)
    sequence.generated.append(token)
    sequence.events.put(_score(logprobs[-1], token, sequence.sampling.logprobs or 0))
    limit = len(sequence.prompt) + sequence.sampling.max_tokens
    if len(ids) + 1 >= min(limit, model.shape.max_positions):
        sequence.finish("length")
        return True
    return False


def _choose(logprobs: Tensor, sequence: Sequence) -> int:
    sampling = sequence.sampling
    if sampling.temperature == 0:
        return int(logprobs.argmax())
    seed = (sampling.seed * 1_000_003 + len(sequence.generated)) % _SEEDS
    generator = torch.Generator().manual_seed(seed)
    weights = (logprobs / sampling.temperature).softmax(-1)
    return int(torch.multinomial(weights, 1, generator=generator))


def _score(logprobs: Tensor, token: int, alternatives: int) -> Scored:
    own = logprobs[token]
    best = logprobs.topk(min(alternatives, logprobs.numel()))
    top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return Scored(token, float(own), int((logprobs > own).sum()) + 1, top)
