"""Each trainer trains, pushes twice, and the engine then says what a plain forward of the gathered weights says."""

from __future__ import annotations

import pytest

TOLERANCE = 1e-4
"""Of a log-probability in float32, over two implementations of one model."""

CREWS: list[tuple[int, tuple[str, ...]]] = [
    (1, ("fsdp2", "lora")),
    (2, ("fsdp2", "fsdp2_offloaded", "fsdp2_mixed", "fsdp2_lora", "ddp")),
    (4, ("fsdp2", "hsdp")),
    (2, ("zero0", "zero1", "zero2", "zero3", "zero3_offloaded", "zero3_bf16", "zero3_module", "zero3_accelerate")),
]
CELLS = [pytest.param(ranks, crew, setup, id=f"{setup}-{ranks}") for ranks, crew in CREWS for setup in crew]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("ranks", "crew", "setup"), CELLS)
def test_the_engine_holds_what_was_trained(ranks: int, crew: tuple[str, ...], setup: str, crews) -> None:
    sender, *others = crews(ranks, crew, setup)
    assert all(off < TOLERANCE for off in sender["off"]), sender
    assert all(moved > 100 * TOLERANCE for moved in sender["moved"]), sender
    assert all(said["committed"] for said in (sender, *others))
