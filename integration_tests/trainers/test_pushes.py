"""Each trainer trains, pushes twice, and the engine then says what a plain forward of the gathered weights says."""

from __future__ import annotations

import pytest
from crews import assert_pushed
from torch_releases import floor, python_with

CREWS: list[tuple[int, tuple[str, ...]]] = [
    (1, ("fsdp2", "lora")),
    (2, ("fsdp2", "fsdp2_offloaded", "fsdp2_mixed", "fsdp2_lora", "ddp")),
    (4, ("fsdp2", "hsdp")),
    (2, ("zero0", "zero1", "zero2", "zero3", "zero3_offloaded", "zero3_bf16", "zero3_module", "zero3_accelerate")),
]
CELLS = [pytest.param(ranks, crew, setup, id=f"{setup}-{ranks}") for ranks, crew in CREWS for setup in crew]
OF_EACH = ("fsdp2", "zero3", "ddp")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("ranks", "crew", "setup"), CELLS)
def test_the_engine_holds_what_was_trained(ranks: int, crew: tuple[str, ...], setup: str, crews) -> None:
    assert_pushed(crews(ranks, crew, setup))


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("torch", [floor(), "newest"])
@pytest.mark.parametrize("setup", OF_EACH)
def test_the_oldest_torch_that_is_taken_and_the_newest_there_is_do_too(setup: str, torch: str, crews) -> None:
    said = crews(2, OF_EACH, setup, python=python_with(torch))
    assert_pushed(said)
    assert torch in {"newest", said[0]["torch"].partition("+")[0]}
