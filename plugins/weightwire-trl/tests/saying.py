"""What an engine says of a few tokens, and what a forward of Hugging Face's says."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from weightwire_testing.sampling import score

PROMPT = [5, 6, 7, 8, 9, 300, 20, 45, *range(30, 60), 11]
SMALL = 1e-3
"""A log-probability that differs by less is of the same weights."""


def whole(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights under their checkpoint names, by the frameworks' own means; adapters merged into a copy."""
    if hasattr(model, "merge_and_unload"):
        model = copy.deepcopy(model).merge_and_unload()
    return {name: getattr(p, "full_tensor", lambda p=p: p)().detach() for name, p in model.named_parameters()}


def forward(checkpoint: Path, weights: dict[str, torch.Tensor] | None = None) -> list[float]:
    """The log-probability of each token of the prompt but the first, of a plain model that holds *weights*."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    if weights is not None:
        model.load_state_dict({name: weight.float() for name, weight in weights.items()}, strict=True)
    with torch.no_grad():
        table = torch.log_softmax(model(torch.tensor([PROMPT])).logits[0].double(), dim=-1)
    return [float(table[i, token]) for i, token in enumerate(PROMPT[1:])]


def distance(one: list[float], other: list[float]) -> float:
    """The largest difference."""
    return max(abs(x - y) for x, y in zip(one, other, strict=True))


def same_words(url: str, checkpoint: Path, model: torch.nn.Module) -> bool:
    """Whether the engine says what *model* says, and no longer what *checkpoint* does."""
    said = score(url, PROMPT)
    trained = forward(checkpoint, whole(model))
    return distance(said, trained) < SMALL < distance(said, forward(checkpoint))
