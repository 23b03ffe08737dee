"""Sessions over a network that misbehaves: real sockets, a reference engine behind the proxy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import requests
import weightwire
from weightwire import discovery
from weightwire.errors import DeadlineExceeded, EngineUnreachable, UpdateFailed
from weightwire.options import Options
from weightwire.states import EngineState
from weightwire_testing.cuts import CutProxy
from weightwire_testing.model import TinyLlama, fingerprint
from weightwire_testing.reference import EngineSettings
from weightwire_torch.sources import ModuleSource

NEW = TinyLlama(seed=2)
B = fingerprint(NEW.checkpoint_tensors())
TIMEOUT = 6.0
SLACK = 2.0


@pytest.fixture(autouse=True)
def few_plugins(monkeypatch):
    monkeypatch.setenv("WEIGHTWIRE_PLUGINS", "weightwire-testing,weightwire-torch,weightwire-vllm")
    discovery.plugins.cache_clear()
    yield
    discovery.plugins.cache_clear()


@pytest.fixture
def engine(reference_engine):
    return reference_engine(EngineSettings(version="0.32.0"))


@pytest.fixture
def proxy(engine) -> Iterator[CutProxy]:
    with CutProxy(engine.url) as made:
        yield made


@pytest.fixture
def session(proxy) -> Iterator[weightwire.Session]:
    with weightwire.connect(proxy.url, NEW, {"timeout": TIMEOUT, "expected": ""}) as made:
        yield made


def in_time(work: Callable[[], object]) -> object:
    began = time.monotonic()
    try:
        return work()
    finally:
        assert time.monotonic() - began < TIMEOUT + SLACK


def serves(engine) -> str:
    """The weights that are served; the engine must not be paused."""
    assert requests.get(f"{engine.url}/is_paused", timeout=5).json() == {"is_paused": False}
    return engine.fingerprint()


def test_in_fair_weather_the_proxy_is_not_noticed(session, proxy, engine):
    receipt = session.push(1)

    assert receipt.engines == (proxy.url,)
    assert serves(engine) == B
    assert proxy.passed[-1] == "/resume"


def test_a_body_of_several_segments_comes_through_whole(proxy):
    reply = requests.post(f"{proxy.url}/v1/completions", json={"prompt": [1] * 400, "max_tokens": 1}, timeout=20)

    assert reply.json()["usage"]["prompt_tokens"] == 400


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("connect:refuse=503,not now", "EngineRefused"),
        ("connect:cut", "EngineUnreachable"),
        ("connect:truncate", "EngineUnreachable"),
        ("connect:garbage", "CompatibilityError"),
        ("connect:trickle=1", "DeadlineExceeded"),
        ("connect:stall=60", "DeadlineExceeded"),
    ],
)
def test_what_a_client_makes_of_a_spoilt_answer(proxy, fault, error):
    proxy.set_faults(fault)
    with pytest.raises(weightwire.WeightwireError) as caught:
        weightwire.inspect(proxy.url, Options(timeout=2.0))

    assert type(caught.value).__name__ == error


@pytest.mark.parametrize("fault", ["update:cut:after", "update:truncate", "update:refuse:after=500,lost on the way"])
def test_an_answer_lost_on_the_way_leaves_a_torn_engine_that_the_next_push_mends(session, proxy, engine, fault):
    proxy.set_faults(fault)
    with pytest.raises(UpdateFailed) as caught:
        in_time(lambda: session.push(1))
    assert caught.value.engine_states == {proxy.url: EngineState.TORN}
    assert requests.get(f"{engine.url}/is_paused", timeout=5).json() == {"is_paused": True}
    proxy.heal()

    assert in_time(lambda: session.push(2)).committed
    assert serves(engine) == B


def test_a_commit_whose_answer_is_lost_is_found_to_be_done(session, proxy, engine):
    proxy.set_faults("finish:cut:after")
    with pytest.raises(UpdateFailed) as caught:
        in_time(lambda: session.push(1))

    assert caught.value.engine_states == {proxy.url: EngineState.WHOLE}
    assert serves(engine) == B


def test_in_a_black_hole_nothing_hangs_and_nothing_arrives_later(session, proxy, engine):
    session.push(1)
    proxy.go_silent()
    before = len(engine.calls())
    with pytest.raises((EngineUnreachable, DeadlineExceeded)):
        in_time(lambda: session.push(2))
    proxy.heal()
    arrived = engine.calls()[before:]

    assert [call for call in arrived if call.method == "POST"] == []
    assert in_time(lambda: session.push(3)).committed


class Cutter(ModuleSource):
    """A source in whose middle something happens to the network."""

    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__(NEW, Options())
        self.happens = happens

    def gather(self, group: int) -> object:
        if group == len(self.manifest().groups) // 2:
            self.happens()
        return super().gather(group)


@pytest.mark.parametrize("how", ["go_silent", "reset", "forget"])
def test_a_network_that_is_cut_in_mid_round_is_survived(proxy, engine, how):
    source = Cutter(getattr(proxy, how))
    with weightwire.connect(proxy.url, source, {"timeout": TIMEOUT}) as session:
        with pytest.raises(UpdateFailed) as caught:
            in_time(lambda: session.push(1))
        # Only a network that came back lets the engine be asked what it holds.
        expected = EngineState.TORN if how == "forget" else EngineState.LOST
        assert caught.value.engine_states == {proxy.url: expected}
        assert requests.get(f"{engine.url}/is_paused", timeout=5).json() == {"is_paused": True}
        source.happens = proxy.heal
        proxy.heal()

        assert in_time(lambda: session.push(2)).committed
    assert serves(engine) == B


def test_connections_that_died_in_a_suspend_do_not_cost_a_round(session, proxy, engine):
    session.push(1)
    proxy.forget()

    assert in_time(lambda: session.push(2)).committed
    assert serves(engine) == B


def test_the_fault_that_kills_is_left_to_the_caller(engine):
    killed = []
    with CutProxy(engine.url, die=lambda: killed.append(True)) as proxy:
        proxy.set_faults("connect:die")
        with pytest.raises(requests.ConnectionError):
            requests.get(f"{proxy.url}/version", timeout=5)

    assert killed == [True]


def test_the_proxy_of_a_server_that_was_started_anew_leads_to_its_new_address(engine):
    with CutProxy("http://127.0.0.1:9") as proxy:
        proxy.lead_to(engine.url)
        assert requests.get(f"{proxy.url}/version", timeout=5).ok


def test_a_closed_proxy_refuses_connections(engine):
    proxy = CutProxy(engine.url)
    proxy.close()
    proxy.close()

    with pytest.raises(requests.ConnectionError):
        requests.get(f"{proxy.url}/version", timeout=5)
