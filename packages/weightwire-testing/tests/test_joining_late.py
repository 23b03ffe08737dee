"""A reference engine joins a session late: it serves nobody before it holds what the other one holds."""

from __future__ import annotations

import requests
import weightwire
from weightwire_testing.model import TinyLlama
from weightwire_testing.reference import EngineSettings


def paused(url: str) -> bool:
    return bool(requests.get(f"{url}/is_paused", timeout=10).json()["is_paused"])


def test_an_engine_that_joins_late_is_paused_until_it_was_pushed_to(engine_pool, tiny_checkpoint) -> None:
    settings = EngineSettings(checkpoint=str(tiny_checkpoint))
    first, second = engine_pool.lend(settings), engine_pool.lend(settings)
    try:
        with weightwire.connect(first.url, TinyLlama(seed=5), {"timeout": 60}) as session:
            session.push(1)
            old = second.fingerprint()
            session.add(second.url)
            assert paused(second.url)
            assert not paused(first.url)
            assert second.fingerprint() == old
            receipt = session.push(2)
        assert receipt.engines == (first.url, second.url)
        assert first.fingerprint() == second.fingerprint() != old
        assert not paused(second.url)
    finally:
        engine_pool.give_back(first)
        engine_pool.give_back(second)
