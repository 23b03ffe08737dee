"""A plain PyTorch training loop, one step at a time. It knows nothing of engines."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weightwire_testing.demo.text import VOCABULARY, encode
from weightwire_testing.model import ModelShape, TinyLlama

BATCH = 16
RATE = 4e-3
LAST_RATE = 0.1
"""The part of the learning rate that is left at the end."""

IGNORED = -100
"""The target that ``cross_entropy`` leaves out."""

SHAPE = ModelShape(vocab_size=VOCABULARY, init_std=0.12)
"""About 380 thousand parameters, which learn forty sentences by heart in seventy steps."""


class Trainer:
    """Trains a model on sentences.

    Attributes:
        model: the model; it changes in place.
    """

    def __init__(self, sentences: Sequence[str], *, steps: int, seed: int = 0) -> None:
        """Make a fresh model.

        Args:
            sentences: what it is to learn.
            steps: how many steps there will be; the learning rate falls towards the last.
            seed: of the weights and the batches; two trainers with one seed do the same.
        """
        self.model = TinyLlama(SHAPE, seed=seed)
        self._rows = _padded([encode(sentence) for sentence in sentences])
        self._batches = torch.Generator().manual_seed(seed)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.0)
        self._schedule = torch.optim.lr_scheduler.LinearLR(self._optimizer, 1.0, LAST_RATE, total_iters=steps)

    def step(self) -> float:
        """Train on one batch; returns the loss in nats per byte."""
        rows = self._rows[torch.randint(len(self._rows), (BATCH,), generator=self._batches)]
        logits = self.model(rows[:, :-1].clamp(min=0))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), ignore_index=IGNORED)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self._schedule.step()
        return float(loss.detach())

    @torch.no_grad()
    def score(self, tokens: Sequence[int]) -> list[float]:
        """The log-probability of each token but the first, given those before it."""
        ids = torch.tensor([tokens])
        rows = self.model(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None])
        return [float(value) for value in rows.flatten()]


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """One row a sentence, shape ``(sentences, longest)``; what is behind a sentence's end is left out of the loss."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=IGNORED)
