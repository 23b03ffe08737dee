"""How to start a vLLM of the four-phase releases so that it takes weights."""

from __future__ import annotations

from weightwire.registry import ServeAdvice
from weightwire.versions import release
from weightwire.vllm.advice import ways_within

from weightwire_vllm.plugin import BEFORE, SINCE


def advise(version: str) -> tuple[ServeAdvice, ...]:
    """The known ways to start vLLM *version*, the stock one first.

    Raises:
        CompatibilityError: this control plane does not speak to it.
    """
    older = release(version) < release(SINCE)
    hint = "pip install weightwire-vllm-legacy" if older else "upgrade weightwire-vllm"
    return ways_within(version, since=SINCE, before=BEFORE, hint=hint)
