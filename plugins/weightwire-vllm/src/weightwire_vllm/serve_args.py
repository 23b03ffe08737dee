"""How to start a vLLM of the four-phase releases so that it takes weights."""

from __future__ import annotations

from weightwire.errors import CompatibilityError
from weightwire.registry import ServeAdvice
from weightwire.versions import release, within
from weightwire.vllm.advice import ways

from weightwire_vllm.plugin import BEFORE, SINCE


def advise(version: str) -> tuple[ServeAdvice, ...]:
    """The known ways to start vLLM *version*, the stock one first.

    Raises:
        CompatibilityError: this control plane does not speak to it.
    """
    if not within(version, since=SINCE, before=BEFORE):
        raise CompatibilityError(
            f"vLLM {version} is outside the releases known here: {SINCE} up to, not including, {BEFORE}.",
            hint="pip install weightwire-vllm-legacy"
            if release(version) < release(SINCE)
            else "upgrade weightwire-vllm",
        )
    return ways(version)
