"""A trainer of each kind pushes into real, stock vLLM servers on this CPU, at both ends of the four-phase form.

The servers run vLLM's own ``nccl`` engine; the bytes go over gloo in NCCL's place (the stock shim).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from crews import OPTIONS, Errand, assert_pushed, reports, sail
from weightwire_testing import environments
from weightwire_testing.servers import Setup, VllmServer

OF_EACH = {"fsdp2": "fsdp2", "deepspeed": "zero3", "ddp": "ddp"}
"""Trainers, and their set-ups."""


class Place(NamedTuple):
    """A server, and who pushes into it: two ranks, in one set-up after the other."""

    release: str
    setups: tuple[str, ...]
    tp: int = 1
    dp: int = 1


ENDS = [Place(release, tuple(OF_EACH.values())) for release in ("0.22.1", "0.32.0")]
LAYOUTS = {"tp2": Place("0.32.0", ("fsdp2",), tp=2), "dp2": Place("0.32.0", ("fsdp2",), dp=2)}
CELLS = [
    *(pytest.param(place, OF_EACH[who], id=f"{who}-stock-{place.release}") for place in ENDS for who in OF_EACH),
    *(pytest.param(place, "fsdp2", id=f"fsdp2-{layout}-{place.release}") for layout, place in LAYOUTS.items()),
]


@pytest.fixture(scope="session")
def pushed(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Place], Path]:
    """Start a server, once, and let a crew push into it; returns where the crew wrote."""

    @cache
    def run(place: Place) -> Path:
        out = tmp_path_factory.mktemp("crew")
        setup = Setup(engine="stock", tp=place.tp, dp=place.dp, arguments=("--skip-tokenizer-init",))
        with VllmServer(environments.ensure(place.release), tiny_checkpoint, setup=setup) as server:
            options = {**OPTIONS, "data_plane": "stock-shim"}
            sail(Errand(server.url, tiny_checkpoint, out, options, replicas=place.dp), 2, place.setups)
        return out

    return run


@pytest.mark.timeout(3600)  # the first use of a release makes its environment
@pytest.mark.parametrize(("place", "setup"), CELLS)
def test_a_stock_server_says_what_was_trained(
    place: Place, setup: str, pushed, record_testsuite_property: Callable[[str, object], None]
) -> None:
    said = reports(pushed(place), 2, setup)
    assert_pushed(said)
    record_testsuite_property("largest difference", f"{max(said[0]['off']):.1e}")
