"""How to start a vLLM of the two-call releases so that it takes weights."""

from __future__ import annotations

from weightwire.registry import ServeAdvice
from weightwire.vllm.advice import ways_within

from weightwire_vllm_legacy.plugin import BEFORE, SINCE

NEWER = "pip install weightwire-vllm, which speaks to 0.21 and newer"


def advise(version: str) -> tuple[ServeAdvice, ...]:
    """The known ways to start vLLM *version*, the stock one first.

    Raises:
        CompatibilityError: this control plane does not speak to it.
    """
    return ways_within(version, since=SINCE, before=BEFORE, hint=NEWER)
