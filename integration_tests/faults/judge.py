"""What an engine does, seen from outside: by its own answers over HTTP, never by a session's word."""

from __future__ import annotations

import requests
import torch
import weightwire
from weightwire.errors import WeightwireError
from weightwire.options import Options
from weightwire_testing.model import TinyLlama
from weightwire_testing.sampling import score

PROMPT = (3, 141, 59, 26, 53, 58, 97, 93, 23, 84, 62, 64, 33, 83, 27, 95)
TOLERANCE = 1e-3
SEEDS = {"A": 1, "B": 2, "C": 3}
PATIENCE = 3.0
"""Seconds that a reference engine may take to answer; more, where a server is slow, is said by who asks."""


def scores(model: torch.nn.Module) -> list[float]:
    """The log-probability of each token of the prompt but the first, by *model*."""
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT]))[0]
    given = logits[:-1].log_softmax(-1).gather(1, torch.tensor(PROMPT[1:])[:, None])
    return [float(value) for value in given[:, 0]]


class Judge:
    """Knows what each set of weights says of the prompt."""

    def __init__(self, patience: float = PATIENCE) -> None:
        """Compute it.

        Args:
            patience: seconds that an engine may take to answer.
        """
        self._patience = patience
        self.known = {name: scores(TinyLlama(seed=seed).eval()) for name, seed in SEEDS.items()}

    def serves(self, url: str) -> str:
        """What the engine serves: ``A``, ``B``, ``C`` or ``a mix``; ``paused``; ``nobody`` where it does not answer."""
        paused = is_paused(url, self._patience)
        if paused is None:
            return "nobody"
        if paused:
            return "paused"
        try:
            return self.name(score(url, PROMPT))
        except (WeightwireError, requests.RequestException):
            return "nobody"

    def status(self, url: str) -> str:
        """What a process that knows nothing of the session makes of the engine."""
        try:
            return str(weightwire.inspect(url, Options(timeout=self._patience)).state)
        except WeightwireError:
            return "lost"

    def name(self, found: list[float]) -> str:
        """Whose log-probabilities these are."""
        for name, known in self.known.items():
            if max(abs(a - b) for a, b in zip(found, known, strict=True)) < TOLERANCE:
                return name
        return "a mix"


def is_paused(url: str, patience: float = PATIENCE) -> bool | None:
    """Whether the engine is paused, by its own word; None where it gives none."""
    with requests.Session() as session:
        session.trust_env = False
        try:
            return bool(session.get(f"{url}/is_paused", timeout=patience).json()["is_paused"])
        except (requests.RequestException, ValueError, KeyError):
            return None
