"""How to start a vLLM of the two-call releases so that it takes weights."""

from __future__ import annotations

from weightwire.errors import CompatibilityError
from weightwire.registry import ServeAdvice
from weightwire.versions import within
from weightwire.vllm.advice import ways

from weightwire_vllm_legacy.plugin import BEFORE, SINCE


def advise(version: str) -> tuple[ServeAdvice, ...]:
    """The known ways to start vLLM *version*, the stock one first.

    Raises:
        CompatibilityError: this control plane does not speak to it.
    """
    if not within(version, since=SINCE, before=BEFORE):
        raise CompatibilityError(
            f"vLLM {version} is outside the releases known here: {SINCE} up to, not including, {BEFORE}.",
            hint="pip install weightwire-vllm, which speaks to 0.21 and newer",
        )
    return ways(version)
