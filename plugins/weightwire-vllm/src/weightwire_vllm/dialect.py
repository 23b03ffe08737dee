"""Which wire form a release speaks."""

from __future__ import annotations

from typing import Protocol

from weightwire.errors import CompatibilityError
from weightwire.versions import release
from weightwire.vllm.control import Encoders
from weightwire.vllm.posts import Post

from weightwire_vllm.dialect_0_21 import Dialect021
from weightwire_vllm.dialect_0_25 import Dialect025
from weightwire_vllm.dialect_0_28 import Dialect028


class Dialect(Encoders, Protocol):
    """One wire form: pure encoders of the four calls whose bodies differ by release and by engine."""

    def start(self) -> Post:
        """Open an update."""

    def finish(self, weight_version: str | None) -> Post:
        """Close the update; None leaves the server's version as it is."""


def choose(version: str) -> Dialect:
    """The dialect of *version*; of a release newer than all that are known, the newest.

    Raises:
        CompatibilityError: it is older than 0.21, and knows no start and finish.
    """
    number = release(version)
    if number >= (0, 28):
        return Dialect028(number)
    if number >= (0, 25):
        return Dialect025(number)
    if number >= (0, 21):
        return Dialect021()
    raise CompatibilityError(
        f"vLLM {version} transfers weights in two calls; the four-phase form begins with 0.21.",
        hint="pip install weightwire-vllm-legacy (0.17 to 0.20), or serve with a newer vLLM",
    )
