"""Packed experts are taken apart as the checkpoint names them, as views."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from weightwire.errors import ManifestError
from weightwire_torch.experts import Block, blocks

EXPERTS, ROWS, COLUMNS = 3, 4, 5
Tensors = Mapping[str, torch.Tensor]


def halves(tensors: Tensors) -> Tensors:
    """Gate and up above each other, an expert behind the other: Qwen3-MoE, Mixtral."""
    (packed,) = tensors.values()
    parts = ((expert, packed[expert].chunk(2)) for expert in range(packed.shape[0]))
    return {f"{e}.{name}": part for e, two in parts for name, part in zip(("gate", "up"), two, strict=True)}


def single(tensors: Tensors) -> Tensors:
    (packed,) = tensors.values()
    return {f"{expert}.down": packed[expert] for expert in range(packed.shape[0])}


def by_turns(tensors: Tensors) -> Tensors:
    """Gate in the even rows, up in the odd ones: gpt-oss."""
    (packed,) = tensors.values()
    return {f"{e}.{name}": packed[e, first::2] for e in range(packed.shape[0]) for first, name in enumerate("gu")}


def transposed(tensors: Tensors) -> Tensors:
    return {name: part.T for name, part in single(tensors).items()}


def whole(tensors: Tensors) -> Tensors:
    return tensors


def only_together(tensors: Tensors) -> Tensors:
    raise ManifestError(f"{len(tensors)} tensor can't be converted without its neighbour")


def form(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="meta")


@pytest.mark.parametrize("convert", [halves, single])
def test_blocks_of_rows_are_found_and_are_views_of_what_the_conversion_makes(convert: Callable) -> None:
    found = blocks("experts", form(EXPERTS, ROWS, COLUMNS), convert)
    packed = torch.randn(EXPERTS, ROWS, COLUMNS)
    expected = convert({"experts": packed})
    assert found.keys() == expected.keys()
    for name, block in found.items():
        part = block.of(packed)
        assert torch.equal(part, expected[name])
        assert part.untyped_storage().data_ptr() == packed.untyped_storage().data_ptr()
        assert part.is_contiguous()


def test_a_block_is_told_by_its_expert_and_its_rows() -> None:
    assert blocks("experts", form(EXPERTS, ROWS, COLUMNS), halves)["2.up"] == Block(2, 2, 4)


@pytest.mark.parametrize(
    ("convert", "shape"),
    [
        (by_turns, (EXPERTS, ROWS, COLUMNS)),
        (transposed, (EXPERTS, ROWS, COLUMNS)),
        (transposed, (EXPERTS, ROWS, ROWS)),  # looks the same by its shape
        (whole, (EXPERTS, ROWS, COLUMNS)),
        (only_together, (EXPERTS, ROWS, COLUMNS)),
        (single, (ROWS, COLUMNS)),
    ],
)
def test_what_is_not_made_of_blocks_is_left_to_the_conversion(convert: Callable, shape: tuple[int, ...]) -> None:
    assert blocks("experts", form(*shape), convert) == {}
