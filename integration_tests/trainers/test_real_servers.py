"""A trainer of each kind pushes into real, stock vLLM servers on this CPU, at both ends of the four-phase form.

The servers run vLLM's own ``nccl`` engine; the bytes go over gloo in NCCL's place (the stock shim).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from crews import OPTIONS, Errand, assert_pushed, reports, sail
from weightwire_testing import environments
from weightwire_testing.servers import Setup, VllmServer

OF_EACH = {"fsdp2": "fsdp2", "deepspeed": "zero3", "ddp": "ddp"}
"""Trainers, and their set-ups."""
RELEASES = ("0.22.1", "0.32.0")
STOCK = Setup(engine="stock", arguments=("--skip-tokenizer-init",))


@pytest.fixture(scope="session")
def pushed(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Start a server of that release, once, and let a crew push into it; returns where the crew wrote."""

    @cache
    def run(release: str) -> Path:
        out = tmp_path_factory.mktemp(f"vllm-{release}")
        with VllmServer(environments.ensure(release), tiny_checkpoint, setup=STOCK) as server:
            sail(
                Errand(server.url, tiny_checkpoint, out, {**OPTIONS, "data_plane": "stock-shim"}),
                2,
                [*OF_EACH.values()],
            )
        return out

    return run


@pytest.mark.timeout(3600)  # the first use of a release makes its environment
@pytest.mark.parametrize(
    ("trainer", "release"),
    [pytest.param(each, release, id=f"{each}-stock-{release}") for release in RELEASES for each in OF_EACH],
)
def test_a_stock_server_says_what_was_trained(
    trainer: str, release: str, pushed, record_testsuite_property: Callable[[str, object], None]
) -> None:
    said = reports(pushed(release), 2, OF_EACH[trainer])
    assert_pushed(said)
    record_testsuite_property("largest difference", f"{max(said[0]['off']):.1e}")
