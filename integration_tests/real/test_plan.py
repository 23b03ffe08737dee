"""Our engine on a server that keeps its weights plain: the first round proves a plan, and the others land by it."""

from __future__ import annotations

import re

import pytest
from weightwire.versions import release

WAYS = re.compile(r"Weightwire: the round (landed by the plan|took vLLM's reload)")
SINCE = (0, 25)
"""Before, every round takes the reload."""


def ways(served, session, versions):
    """How each of some rounds came into the model, as the first worker's log tells."""
    before = served.server.log.stat().st_size
    for version in versions:
        session.push(version)
    told = served.server.log.read_bytes()[before:].decode(errors="replace")
    return WAYS.findall(told)[:: served.place.tp * served.place.dp]


def test_later_rounds_land_by_the_plan_and_bring_what_was_pushed(served):
    if served.place.engine != "ours" or release(served.server.environment.version) < SINCE:
        pytest.skip("no plan: vLLM's own engine, or a worker that opens and closes its updates by itself")
    with served.connect(served.b.path) as session:
        first, *later = ways(served, session, [1, 2, 3])
        assert served.distance(served.b) < served.same
    with served.connect(served.a.path) as session:
        again = ways(served, session, [4])
        assert served.distance(served.a) < served.same
    assert later + again == ["landed by the plan" if served.place.plain else "took vLLM's reload"] * 3
    assert first in {"took vLLM's reload", "landed by the plan"}, "a test before this one may have proved the plan"
