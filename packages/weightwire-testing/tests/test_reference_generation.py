"""What the reference engine says, and what a pause does to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
import requests
import torch
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import DeadlineExceeded
from weightwire_testing.model import KVCache, TinyLlama
from weightwire_testing.reference import Backend, EngineSettings
from weightwire_testing.reference.generation import PrefixCache, Sampling, Scored, Sequence, step

PROMPT = [5, 6, 7, 8, 9]
MODEL = TinyLlama(seed=1)
NEW = TinyLlama(seed=2)


def logprobs(model: TinyLlama, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids]))[0].log_softmax(-1)


def greedy(model: TinyLlama, ids: list[int], count: int) -> list[int]:
    said, cache = list(ids), KVCache()
    with torch.no_grad():
        while len(said) < len(ids) + count:
            said.append(int(model(torch.tensor([said[cache.length :]]), cache)[0, -1].argmax()))
    return said[len(ids) :]


class Stream:
    """A request being streamed, read on a thread of its own."""

    def __init__(self, there, tokens: int, prompt: list[int] | None = None) -> None:
        self.tokens: list[int] = []
        self.reason: str | None = None
        self._grown = threading.Condition()
        self._asked = {"prompt": prompt or PROMPT, "max_tokens": tokens, "temperature": 0}
        self._asked |= {"stream": True, "return_token_ids": True}
        self._url = there.engine.url + "/v1/completions"
        self._call = Call(self._read, doing="streaming")

    def _events(self) -> Iterator[dict]:
        with requests.post(self._url, json=self._asked, stream=True, timeout=60) as reply:
            for line in reply.iter_lines():
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])["choices"][0]

    def _read(self) -> None:
        for choice in self._events():
            with self._grown:
                self.tokens += choice["token_ids"] or []
                self.reason = choice["finish_reason"] or self.reason
                self._grown.notify_all()

    def reaches(self, count: int) -> None:
        with self._grown:
            assert self._grown.wait_for(lambda: len(self.tokens) >= count, 60)

    def end(self) -> None:
        self._call.result(Deadline.after(60))


def push(there, model: TinyLlama) -> None:
    there.init()
    assert there.push(model.checkpoint_tensors()) == [200, 200, 200]


def stock(**more: object) -> EngineSettings:
    return EngineSettings(backend=Backend.NCCL, **more)


def test_tokens_and_logprobs_are_the_models(trainer) -> None:
    choice = trainer().complete(
        prompt=PROMPT, max_tokens=6, logprobs=3, return_token_ids=True, return_tokens_as_token_ids=True
    )
    expected = greedy(MODEL, PROMPT, 6)
    rows = logprobs(MODEL, PROMPT + expected)[len(PROMPT) - 1 : -1]
    assert choice["token_ids"] == expected
    assert choice["prompt_token_ids"] == PROMPT
    assert choice["finish_reason"] == "length"
    said = choice["logprobs"]
    assert said["tokens"] == [f"token_id:{token}" for token in expected]
    assert said["token_logprobs"] == pytest.approx(
        [float(row[t]) for row, t in zip(rows, expected, strict=True)], abs=1e-4
    )
    for row, top in zip(rows, said["top_logprobs"], strict=True):
        assert set(top) == {f"token_id:{token}" for token in row.topk(3).indices.tolist()}


def test_prompt_logprobs_have_vllms_form(trainer) -> None:
    said = trainer().complete(prompt=PROMPT, max_tokens=1, prompt_logprobs=1)["prompt_logprobs"]
    rows = logprobs(MODEL, PROMPT)
    assert said[0] is None
    assert len(said) == len(PROMPT)
    for row, token, entry in zip(rows, PROMPT[1:], said[1:], strict=False):
        own = entry[str(token)]
        assert own["logprob"] == pytest.approx(float(row[token]), abs=1e-4)
        assert own["rank"] == int((row > row[token]).sum()) + 1
        assert entry[str(int(row.argmax()))]["rank"] == 1


def test_a_string_stands_for_its_bytes(trainer) -> None:
    there = trainer()
    text, ids = (there.complete(prompt=prompt, max_tokens=5) for prompt in ("hé", list("hé".encode())))
    assert text["text"] == ids["text"]


def test_several_prompts_give_as_many_choices(trainer) -> None:
    reply = trainer().post(
        "/v1/completions",
        {"prompt": [PROMPT, [1]], "max_tokens": 3, "temperature": 0, "return_token_ids": True},
    )
    choices = reply.json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    assert [choice["token_ids"] for choice in choices] == [greedy(MODEL, PROMPT, 3), greedy(MODEL, [1], 3)]
    assert reply.json()["usage"] == {"prompt_tokens": 6, "completion_tokens": 6, "total_tokens": 12}


def test_sampling_is_repeated_by_its_seed(trainer) -> None:
    there = trainer()
    one, same, other = (
        there.complete(temperature=1.0, seed=seed, max_tokens=12, return_token_ids=True)["token_ids"]
        for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


def test_a_prompt_ends_at_the_models_last_position(trainer) -> None:
    choice = trainer().complete(prompt=[1] * 510, max_tokens=100, return_token_ids=True)
    assert len(choice["token_ids"]) == 2


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"prompt": [1], "max_tokens": 0}, 400),
        ({"prompt": []}, 400),
        ({"prompt": [1] * 512}, 400),
        ({"prompt": [512]}, 400),
        ({"prompt": [-1]}, 400),
        ({"prompt": [1], "n": 2}, 400),
        ({"prompt": [1], "stream": True, "prompt_logprobs": 1}, 400),
        ({"prompt": [1, "x"]}, 400),
        ({"max_tokens": 3}, 400),
        ({"prompt": [1], "model": "another"}, 404),
    ],
)
def test_a_wrong_request_is_refused(asked, status, trainer) -> None:
    assert trainer().post("/v1/completions", asked).status_code == status


def test_a_body_that_is_no_json_is_refused(trainer) -> None:
    url = trainer().engine.url + "/v1/completions"
    assert requests.post(url, data=b"{", timeout=9).status_code == 400


# Pauses.


def test_keep_freezes_requests_and_they_go_on_after_resume(trainer) -> None:
    there = trainer()
    stream = Stream(there, 200)
    stream.reaches(10)
    there.post("/pause", mode="keep")
    frozen = len(stream.tokens)
    assert there.get("/is_paused").json() == {"is_paused": True}
    new = there.later("/v1/completions", {"prompt": [1], "max_tokens": 1})
    with pytest.raises(DeadlineExceeded):
        new.result(Deadline.after(0.3))
    assert len(stream.tokens) <= frozen + 1
    there.post("/resume")
    stream.end()
    assert stream.tokens == greedy(MODEL, PROMPT, 200)
    assert new.result(Deadline.after(9)).status_code == 200


def through_an_update(there, *, clear_cache: str) -> tuple[list[int], list[int]]:
    """A request that a full update falls into: what it said, and what the new weights say from where it changed."""
    stream = Stream(there, 480)
    stream.reaches(5)
    there.post("/pause", mode="keep", clear_cache=clear_cache)
    push(there, NEW)
    there.post("/resume")
    stream.end()
    assert len(stream.tokens) == 480
    old = greedy(MODEL, PROMPT, 480)
    changed = next(i for i, (a, b) in enumerate(zip(stream.tokens, old, strict=True)) if a != b)
    assert changed >= 5
    return stream.tokens[changed : changed + 20], greedy(NEW, PROMPT + stream.tokens[:changed], 20)


def test_requests_in_flight_go_on_with_the_new_weights(trainer) -> None:
    said, expected = through_an_update(trainer(stock()), clear_cache="true")
    assert said == expected[: len(said)]


def test_keeping_the_caches_mixes_old_keys_with_new_weights(trainer) -> None:
    said, expected = through_an_update(trainer(stock()), clear_cache="false")
    assert said != expected[: len(said)]


@pytest.mark.parametrize(("clear", "exact"), [("true", True), ("false", False)])
def test_a_prompt_cached_under_old_weights_is_right_only_after_a_reset(clear, exact, trainer) -> None:
    there = trainer(stock())
    prompt = list(range(40))
    there.complete(prompt=prompt)
    there.post("/pause", mode="keep", clear_cache=clear)
    push(there, NEW)
    there.post("/resume")
    said = there.complete(prompt=prompt, max_tokens=8, return_token_ids=True)["token_ids"]
    assert (said == greedy(NEW, prompt, 8)) is exact


def test_abort_ends_requests_with_what_they_have(trainer) -> None:
    there = trainer()
    stream = Stream(there, 500)
    stream.reaches(5)
    there.post("/pause", mode="abort")
    stream.end()
    assert stream.reason == "abort"
    assert 5 <= len(stream.tokens) < 500


def test_wait_lets_requests_finish_first_and_new_ones_wait(trainer) -> None:
    there = trainer()
    stream = Stream(there, 300)
    stream.reaches(5)
    assert there.post("/pause", mode="wait").status_code == 200
    stream.end()
    assert stream.tokens == greedy(MODEL, PROMPT, 300)
    new = there.later("/v1/completions", {"prompt": [1], "max_tokens": 1})
    with pytest.raises(DeadlineExceeded):
        new.result(Deadline.after(0.3))
    there.post("/resume")
    assert new.result(Deadline.after(9)).status_code == 200


def test_the_old_flag_for_waiting_is_honoured_up_to_0_31_and_aborts_from_0_32(trainer) -> None:
    there = trainer()
    for version, reason in (("0.31.0", "length"), ("0.32.0", "abort")):
        there.engine.reset(EngineSettings(version=version, checkpoint=there.engine.settings.checkpoint))
        stream = Stream(there, 400)
        stream.reaches(5)
        there.post("/pause", wait_for_inflight_requests="true")
        stream.end()
        assert stream.reason == reason


@pytest.mark.parametrize(("mode", "status"), [("abort", 503), ("wait", 503), ("keep", None)])
def test_from_0_33_a_pause_other_than_keep_sheds_requests(mode, status, trainer) -> None:
    there = trainer(EngineSettings(version="0.33.0"))
    there.post("/pause", mode=mode)
    asked = there.later("/v1/completions", {"prompt": [1], "max_tokens": 1})
    if status is None:
        with pytest.raises(DeadlineExceeded):
            asked.result(Deadline.after(0.3))
        there.post("/resume")
        assert asked.result(Deadline.after(9)).status_code == 200
    else:
        reply = asked.result(Deadline.after(9))
        assert (reply.status_code, reply.json()["error"]["code"]) == (status, "engine_paused")


def test_requests_can_be_aborted_by_id_without_a_pause(trainer) -> None:
    there = trainer()
    stream = Stream(there, 500)
    stream.reaches(5)
    assert there.post("/abort_requests", {"request_ids": ["cmpl-nobody"]}).json()["aborted"] == 0
    assert there.post("/abort_requests", {}).json()["aborted"] == 1
    stream.end()
    assert stream.reason == "abort"
    assert there.says()


def test_a_reader_that_goes_away_aborts_its_request(trainer) -> None:
    there = trainer()
    asked = {"prompt": [1], "max_tokens": 500, "stream": True}
    with requests.post(there.engine.url + "/v1/completions", json=asked, stream=True, timeout=9) as reply:
        next(reply.iter_lines())
    assert there.post("/pause", mode="wait").status_code == 200
    assert there.post("/abort_requests", {}).json()["aborted"] == 0


def test_resetting_the_prefix_cache_is_a_call_of_its_own(trainer) -> None:
    assert trainer().post("/reset_prefix_cache").json() == {"success": True}


# By themselves.


def test_the_prefix_cache_leaves_a_token_to_compute_and_finds_the_longest() -> None:
    prefixes, cache = PrefixCache(), KVCache()
    with torch.no_grad():
        MODEL(torch.tensor([PROMPT]), cache)
    prefixes.remember(PROMPT, cache)
    assert prefixes.lookup(PROMPT).length == len(PROMPT) - 1
    assert prefixes.lookup([*PROMPT, 1, 2]).length == len(PROMPT)
    assert prefixes.lookup([*PROMPT[:2], 1, 2]).length == 2
    assert prefixes.lookup([9, 9, 9]).length == 0
    prefixes.clear()
    assert prefixes.lookup(PROMPT).length == 0


def test_the_prefix_cache_forgets_the_oldest() -> None:
    prefixes, cache = PrefixCache(), KVCache()
    with torch.no_grad():
        MODEL(torch.tensor([[1, 2]]), cache)
    for token in range(17):
        prefixes.remember([token, 2], cache)
    assert prefixes.lookup([0, 2, 3]).length == 0
    assert prefixes.lookup([16, 2, 3]).length == 2


def test_a_step_gives_one_token_with_its_rank() -> None:
    sequence = Sequence(PROMPT, Sampling(max_tokens=1, temperature=0, logprobs=2))
    assert step(MODEL, sequence, prefixes=PrefixCache())
    scored = sequence.events.get()
    assert isinstance(scored, Scored)
    assert (scored.token, scored.rank, len(scored.top)) == (greedy(MODEL, PROMPT, 1)[0], 1, 2)


@pytest.mark.parametrize("seed", [2**63 - 1, -(2**63)])
def test_every_seed_that_a_request_may_have_is_taken(seed: int) -> None:
    sequence = Sequence(list(PROMPT), Sampling(max_tokens=2, seed=seed))
    prefixes = PrefixCache()
    assert [step(MODEL, sequence, prefixes=prefixes) for _ in range(2)] == [False, True]
