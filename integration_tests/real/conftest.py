"""Real vLLM servers on this machine's CPU, one after another: ``pytest integration_tests/real --vllm 0.32.0``.

Each test runs on each server of the table below (with ``--quick``, the tests that are marked so on the first two). A
server is started once, serves a tiny model with weights A, and every test leaves it as it was. What it serves is
compared with a forward of Hugging Face's transformers in float32.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import requests
import torch
import transformers
import weightwire
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from weightwire.errors import ConfigurationError
from weightwire_testing import environments
from weightwire_testing.sampling import score
from weightwire_testing.servers import Setup, VllmServer

PROMPT = [5, 6, 7, 8, 9, 300, 20, 45, *range(30, 60), 11]
SMALL = 1e-3
"""A log-probability that differs by less is of the same weights."""

COORDINATOR_WAS_SLOW = "DP Coordinator process failed to report"

SECONDS = 600
"""The longest that one test may take, the start of its server included."""


class Place(NamedTuple):
    """A server; a plain one keeps its weights as they come, as one on a GPU does."""

    engine: str
    model: str
    tp: int = 1
    dp: int = 1
    plain: bool = False

    def __str__(self) -> str:
        """The test's id."""
        return f"{self.engine}-{self.model}{'-plain' if self.plain else ''}-tp{self.tp}-dp{self.dp}"


QUICK = [Place("ours", "qwen3"), Place("stock", "qwen3")]
PLACES = [
    *QUICK,
    Place("ours", "llama-tied"),
    Place("stock", "llama-tied"),
    Place("ours", "qwen3-moe"),
    Place("ours", "qwen3", tp=2),
    Place("stock", "qwen3", tp=2),
    Place("ours", "qwen3", dp=2),
    Place("stock", "qwen3", dp=2),
    Place("ours", "qwen3", plain=True),
    Place("ours", "llama-tied", plain=True),
    Place("ours", "qwen3", tp=2, plain=True),
]


class Weights(NamedTuple):
    """A checkpoint, and what a model with it says of the prompt."""

    path: Path
    scores: list[float]

    def module(self) -> torch.nn.Module:
        """The model in a trainer."""
        return _load(self.path)


class Served:
    """A server that holds weights A.

    Attributes:
        same: log-probabilities in float32 that differ by less, over two implementations of one model, are the same.
    """

    same = 1e-4

    def __init__(self, server: VllmServer, place: Place, a: Weights, b: Weights) -> None:
        self.server = server
        self.url = server.url
        self.place = place
        self.a = a
        self.b = b
        self.replicas = list(range(place.dp)) if place.dp > 1 else [None]
        self.largest = 0.0
        """Of the differences that were small: how exactly it served what it should."""

    def connect(self, weights: object, **options: object) -> weightwire.Session:
        """A session as a trainer opens one; small packs, so that there are several."""
        plane = {"data_plane": "stock-shim"} if self.place.engine == "stock" else {}
        return weightwire.connect(self.url, weights, {"bucket_bytes": 300_000, "timeout": 60, **plane, **options})

    def push(self, weights: object, **options: object) -> weightwire.Receipt:
        """One session, one round, as a trainer that pushes once."""
        with self.connect(weights, **options) as session:
            return session.push("a version")

    def distance(self, weights: Weights) -> float:
        """How far what is served is from *weights*, at most, over all replicas and tokens."""
        found = max(distance(score(self.url, PROMPT, replica=replica), weights.scores) for replica in self.replicas)
        self.largest = max(self.largest, found if found < SMALL else 0.0)
        return found

    def paused(self) -> bool:
        """Whether the server says that it is paused."""
        reply = requests.get(f"{self.url}/is_paused", timeout=30)
        return bool(reply.json()["is_paused"])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which release, and how much of it."""
    group = parser.getgroup("real servers")
    group.addoption("--vllm", metavar="VERSION", help="the release of vLLM to run, such as 0.32.0")
    group.addoption("--quick", action="store_true", help="one server for each engine, and the tests marked quick")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", "quick: also runs with --quick")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test on every server; the scope lets pytest run all tests of one before it starts the next."""
    if "served" in metafunc.fixturenames:
        places = QUICK if metafunc.config.getoption("quick", default=False) else PLACES
        metafunc.parametrize("served", places, ids=str, indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not quick, and give the start of a server its time."""
    ours = [item for item in items if "served" in getattr(item, "fixturenames", ())]
    for item in ours:
        item.add_marker(pytest.mark.timeout(SECONDS))
    if config.getoption("quick", default=False):
        slow = [item for item in ours if item.get_closest_marker("quick") is None]
        items[:] = [item for item in items if item not in slow]
        config.hook.pytest_deselected(items=slow)


@pytest.fixture(scope="session")
def environment(request: pytest.FixtureRequest) -> environments.Environment:
    """The release's environment, made on first use."""
    version = request.config.getoption("vllm", default=None)
    if version is None:
        pytest.skip("say which release: --vllm 0.32.0")
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        return environments.ensure(version, on_progress=lambda step: print(step.text, flush=True))


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Weights]:
    """Makes checkpoints of a model, one for each seed."""
    root = tmp_path_factory.mktemp("checkpoints")

    @cache
    def make(model: str, seed: int) -> Weights:
        path = root / f"{model}-{seed}"
        torch.manual_seed(seed)
        MODELS[model]().float().save_pretrained(path)
        _save_tokenizer(path)
        (path / "generation_config.json").unlink(missing_ok=True)
        return Weights(path, _scores(path))

    return make


@pytest.fixture(scope="session")
def served(
    request: pytest.FixtureRequest,
    environment: environments.Environment,
    weights: Callable[[str, int], Weights],
    record_testsuite_property: Callable[[str, object], None],
) -> Iterator[Served]:
    """One server of the table."""
    place: Place = request.param
    a, b = weights(place.model, 1), weights(place.model, 2)
    assert distance(a.scores, b.scores) > 1, "the two must be told apart"
    setup = Setup(engine=place.engine, tp=place.tp, dp=place.dp, like_a_gpu=place.plain)
    server = VllmServer(environment, a.path, setup=setup, ready_within=SECONDS - 60)
    try:
        start(server)
        held = Served(server, place, a, b)
        yield held
    finally:
        server.stop()
    record_testsuite_property("largest difference", f"{held.largest:.1e}")


@pytest.fixture(autouse=True)
def whole(served: Served) -> Iterator[None]:
    """Every test finds weights A, and leaves them."""
    assert served.distance(served.a) < served.same
    yield
    assert served.server.running, served.server.log_tail()
    if served.paused() or served.distance(served.a) >= served.same:
        served.push(served.a.path)
    assert served.distance(served.a) < served.same
    assert not served.paused()


def start(server: VllmServer) -> None:
    """Start it, a second time if vLLM gave up on a process of its own: in 0.22 that one has 30 s, on any machine."""
    try:
        server.__enter__()
    except ConfigurationError as error:
        if COORDINATOR_WAS_SLOW not in str(error):
            raise
        server.__enter__()


def distance(one: list[float], other: list[float]) -> float:
    """The largest difference of two rows of log-probabilities."""
    return max(abs(x - y) for x, y in zip(one, other, strict=True))


SHAPE = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,  # the smallest that vLLM's CPU attention takes
    "max_position_embeddings": 512,
    "eos_token_id": 0,
    "bos_token_id": None,
    "pad_token_id": 3,
    "initializer_range": 0.2,  # large, so that two seeds give clearly different outputs
}


def _qwen3() -> PreTrainedModel:
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(tie_word_embeddings=False, **SHAPE))


def _llama() -> PreTrainedModel:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(tie_word_embeddings=True, **SHAPE))


def _moe() -> PreTrainedModel:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
    config = transformers.Qwen3MoeConfig(tie_word_embeddings=False, mlp_only_layers=[], **experts, **SHAPE)
    return transformers.Qwen3MoeForCausalLM(config)


MODELS: dict[str, Callable[[], PreTrainedModel]] = {"qwen3": _qwen3, "llama-tied": _llama, "qwen3-moe": _moe}


def _tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of bytes: the tests send numbers, but a server wants one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<|endoftext|>": 0, "<pad>": 3} | {letter: 4 + i for i, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>", pad_token="<pad>")


def _save_tokenizer(path: Path) -> None:
    """Save it under the class's older name: transformers 4, which vLLM 0.17 and 0.18 run with, knows no other."""
    _tokenizer().save_pretrained(path)
    config = path / "tokenizer_config.json"
    said = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps(said | {"tokenizer_class": "PreTrainedTokenizerFast"}), encoding="utf-8")


def _load(path: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def _scores(path: Path) -> list[float]:
    with torch.no_grad():
        logits = _load(path)(torch.tensor([PROMPT])).logits[0].double()
    table = torch.log_softmax(logits, dim=-1)
    return [float(table[i, token]) for i, token in enumerate(PROMPT[1:])]
