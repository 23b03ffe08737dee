"""Of tensors that share their storage all are sent, but a tied output head."""

from __future__ import annotations

import torch
from weightwire_torch.ties import identity, untied


def names(rows: list[tuple[str, torch.Tensor]]) -> list[str]:
    left = untied((name, identity(tensor)) for name, tensor in rows)
    return [name for name, _ in rows if name in left]


def test_a_tied_head_is_left_out_wherever_it_stands() -> None:
    embedding = torch.nn.Parameter(torch.randn(4, 2))
    assert names([("embed.weight", embedding), ("lm_head.weight", embedding)]) == ["embed.weight"]
    assert names([("lm_head.weight", embedding), ("embed.weight", embedding)]) == ["embed.weight"]


def test_two_parameters_over_one_storage_are_tied_too() -> None:
    embedding = torch.nn.Parameter(torch.randn(4, 2))
    head = torch.nn.Parameter(embedding.data)
    assert names([("embed.weight", embedding), ("lm_head.weight", head)]) == ["embed.weight"]


def test_other_twins_are_all_sent() -> None:
    shared = torch.randn(3)
    assert names([("a", shared), ("b", shared), ("c", shared.clone())]) == ["a", "b", "c"]


def test_a_head_that_shares_with_another_head_alone_is_sent() -> None:
    shared = torch.randn(3)
    assert names([("lm_head.a", shared), ("lm_head.b", shared)]) == ["lm_head.a", "lm_head.b"]


def test_a_draft_models_head_is_sent_beside_the_embedding_it_is_tied_to() -> None:
    shared = torch.randn(3)
    assert names([("embed.weight", shared), ("mtp.lm_head.weight", shared)]) == ["embed.weight", "mtp.lm_head.weight"]


def test_parts_of_one_storage_are_no_twins() -> None:
    fused = torch.randn(4, 2)
    assert names([("whole", fused), ("upper", fused[:2]), ("lower", fused[2:])]) == ["whole", "upper", "lower"]


def test_tensors_without_memory_are_no_twins() -> None:
    assert names([("a", torch.empty(2, device="meta")), ("b", torch.empty(2, device="meta"))]) == ["a", "b"]
    assert names([("a", torch.empty(0)), ("b", torch.empty(0))]) == ["a", "b"]
