"""Weights A are served; weights B are pushed, and A again. What is served must be exactly what was pushed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import requests
import weightwire
from weightwire.versions import release
from weightwire.vllm.behaviour import behaviour
from weightwire_testing.sampling import REPLICA_HEADER

STREAMS = 4
TOKENS = {1: 400, 2: 120}
"""Of each stream, by tensor-parallel workers: enough to outlast a push; two workers on a few cores are slow."""
SILENCE = 90.0
"""Seconds without a token after which a stream counts as lost."""


@pytest.mark.quick
def test_a_checkpoint_goes_there_and_back_in_packs(served):
    receipt = served.push(served.b.path, packed=True)
    assert receipt.stats.collectives < len(list(served.a.module().parameters()))
    assert served.distance(served.b) < served.same
    assert served.distance(served.a) > 1
    served.push(served.a.path, packed=True)
    assert served.distance(served.a) < served.same


def test_a_live_module_goes_there_and_back_tensor_by_tensor(served):
    weights = (served.b, served.a)
    # transformers 5 fuses a module's experts under names that vLLM before 0.25 skips in silence; a checkpoint's names
    # are good everywhere.
    fused = served.place.model == "qwen3-moe"
    sources = [each.path if fused else each.module() for each in weights]
    for source, expected in zip(sources, weights, strict=True):
        receipt = served.push(source, packed=False)
        assert receipt.stats.collectives > 5
        assert served.distance(expected) < served.same


def test_one_session_brings_round_after_round_and_the_server_says_which_it_holds(served):
    with served.connect(served.b.path) as session:
        for step in (1, 2, 1):
            receipt = session.push(step)
            assert receipt.committed
            assert receipt.engines == (served.url,)
            held = weightwire.inspect(served.url)
            assert held.weight_version in {None, str(step)}
            assert (held.paused, held.state) == (False, "whole")
    assert served.distance(served.b) < served.same


def test_requests_in_flight_go_on_over_a_push_and_none_is_lost(served):
    tokens = TOKENS[served.place.tp]
    with served.connect(served.b.path) as session, streams(served, tokens) as running:
        for stream in running:
            stream.await_tokens(20)
        before = [len(stream.tokens) for stream in running]
        session.push("under load", pause="keep")
        assert min(before) < tokens, "the streams ended too early for this test to mean anything"
    assert [stream.error for stream in running] == [None] * STREAMS
    assert [len(stream.tokens) for stream in running] == [tokens] * STREAMS
    assert {stream.finish for stream in running} == {"length"}
    assert not served.paused()
    assert served.distance(served.b) < served.same


def test_what_our_engine_refuses_is_said_in_its_own_words_and_changes_nothing(served):
    if served.place.engine != "ours" or served.place.tp * served.place.dp > 1:
        pytest.skip("a refusal of several workers puts vLLM's replies out of step")
    info = {"wire_version": 99}
    reply = requests.post(f"{served.url}/init_weight_transfer_engine", json={"init_info": info}, timeout=60)
    assert reply.status_code == 500
    told = behaviour(release(served.server.environment.version)).tells_errors
    for words in ("wire version 99", "install the same release") if told else ("Internal Server Error",):
        assert words in reply.text


class Stream:
    """A request whose tokens are streamed, read on a thread of its own."""

    def __init__(self, url: str, tokens: int, headers: dict[str, str]) -> None:
        self.wanted = tokens
        self.tokens: list[str] = []
        self.finish = ""
        self.error: BaseException | None = None
        self.over = False
        self._url = url
        self._headers = headers
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def await_tokens(self, n: int) -> None:
        with self._news:
            while len(self.tokens) < n and self.error is None and not self.over:
                had = len(self.tokens)
                assert self._news.wait(SILENCE), f"{had} of {self.wanted} tokens came, and then nothing"
        assert self.error is None, self.error

    def join(self) -> None:
        self.await_tokens(self.wanted)
        self._thread.join(SILENCE)
        assert not self._thread.is_alive(), "all tokens came, and the stream did not end"

    def _run(self) -> None:
        try:
            self._read()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        with self._news:
            self.over = True
            self._news.notify_all()

    def _read(self) -> None:
        body = {
            "prompt": [5, 6, 7, 8, 9],
            "max_tokens": self.wanted,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        body |= {"logprobs": 0, "return_tokens_as_token_ids": True}
        url = f"{self._url}/v1/completions"
        with requests.post(url, json=body, headers=self._headers, stream=True, timeout=60) as reply:
            reply.raise_for_status()
            for line in reply.iter_lines():
                if line.startswith(b"data: {"):
                    self._take(json.loads(line[6:])["choices"][0])

    def _take(self, choice: dict) -> None:
        with self._news:
            self.tokens += (choice.get("logprobs") or {"tokens": []})["tokens"]
            self.finish = choice.get("finish_reason") or self.finish
            self._news.notify_all()


@contextmanager
def streams(served, tokens) -> Iterator[list[Stream]]:
    """Some streams, over all replicas; on exit they are read to their ends."""
    replicas = [served.replicas[i % len(served.replicas)] for i in range(STREAMS)]
    running = [Stream(served.url, tokens, {} if r is None else {REPLICA_HEADER: str(r)}) for r in replicas]
    yield running
    for stream in running:
        stream.join()
