"""What the trainers of these tests train, and what a forward of it says."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaForCausalLM

PROMPT = [5, 6, 7, 8, 9, 300, 20, 45, *range(30, 60), 11]


def load(checkpoint: Path) -> LlamaForCausalLM:
    """The model, in float32."""
    return LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)


def scores(checkpoint: Path, weights: dict[str, torch.Tensor]) -> list[float]:
    """The log-probability of each token of the prompt but the first, in a plain model that holds *weights*."""
    model = load(checkpoint).eval()
    model.load_state_dict({name: weight.float() for name, weight in weights.items()}, strict=True)
    with torch.no_grad():
        table = torch.log_softmax(model(torch.tensor([PROMPT])).logits[0].double(), dim=-1)
    return [float(table[i, token]) for i, token in enumerate(PROMPT[1:])]


def batch(step: int, rank: int) -> torch.Tensor:
    """Token ids of one step of one rank."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randint(0, 512, (1, 16), generator=generator)
