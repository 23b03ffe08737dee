"""Of tensors that share storage, one is kept."""

from __future__ import annotations

import torch
from weightwire_torch.ties import without_twins


def names(rows: list[tuple[str, torch.Tensor]]) -> list[str]:
    return [name for name, _ in without_twins(rows)]


def test_a_tied_head_is_left_out_wherever_it_stands() -> None:
    embedding = torch.nn.Parameter(torch.randn(4, 2))
    assert names([("embed.weight", embedding), ("lm_head.weight", embedding)]) == ["embed.weight"]
    assert names([("lm_head.weight", embedding), ("embed.weight", embedding)]) == ["embed.weight"]


def test_two_parameters_over_one_storage_are_tied_too() -> None:
    embedding = torch.nn.Parameter(torch.randn(4, 2))
    head = torch.nn.Parameter(embedding.data)
    assert names([("embed.weight", embedding), ("lm_head.weight", head)]) == ["embed.weight"]


def test_the_first_of_other_twins_stays() -> None:
    shared = torch.randn(3)
    assert names([("a", shared), ("b", shared), ("c", shared.clone())]) == ["a", "c"]


def test_parts_of_one_storage_are_no_twins() -> None:
    fused = torch.randn(4, 2)
    assert names([("whole", fused), ("upper", fused[:2]), ("lower", fused[2:])]) == ["whole", "upper", "lower"]


def test_tensors_without_memory_are_no_twins() -> None:
    assert names([("a", torch.empty(2, device="meta")), ("b", torch.empty(2, device="meta"))]) == ["a", "b"]
    assert names([("a", torch.empty(0)), ("b", torch.empty(0))]) == ["a", "b"]
