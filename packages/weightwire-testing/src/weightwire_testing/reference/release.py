"""Which release of vLLM the reference engine behaves as, and in what its weight transfer differs from the others.

Borders are exact to the minor release. They were read from vLLM's own sources, 0.17.1 to 0.33.0, and the failures
among them seen on real servers (0.17.1, 0.20.2, 0.22.1, 0.32.0).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from weightwire.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Release:
    """A release by its number.

    Attributes:
        text: as ``/version`` says it, such as ``"0.32.0"``.
        minor: its first two numbers.
    """

    text: str
    minor: tuple[int, int]

    @classmethod
    def of(cls, text: str) -> Release:
        """Read a version.

        Raises:
            ConfigurationError: it is none, or weight transfer did not exist in it.
        """
        found = re.match(r"(\d+)\.(\d+)", text)
        if found is None:
            raise ConfigurationError(f"{text!r} is not a version.", hint="write it as 0.32.0")
        minor = int(found[1]), int(found[2])
        if minor < (0, 17):
            raise ConfigurationError(f"vLLM {text} has no weight transfer over HTTP; the first with it is 0.17.")
        return cls(text, minor)

    def since(self, minor: int) -> bool:
        """Whether it is 0.*minor* or later."""
        return self.minor >= (0, minor)

    @property
    def two_call(self) -> bool:
        """One ``update_weights`` opens, loads and closes; there is no start and no finish (up to 0.20)."""
        return not self.since(21)

    @property
    def kernel_format(self) -> bool:
        """``is_checkpoint_format: false`` copies tensors by their run-time names, unprocessed (up to 0.24)."""
        return not self.since(25)

    @property
    def start_needs_body(self) -> bool:
        """``start_weight_update`` without a JSON body is a 400 (0.21 to 0.24)."""
        return self.since(21) and not self.since(25)

    @property
    def failed_update_closes(self) -> bool:
        """A failed update ends the session but leaves the model as it is (from 0.23); before, the session goes on."""
        return self.since(23)

    @property
    def packing_in_init(self) -> bool:
        """The pack geometry is a part of ``init_info`` (from 0.28) instead of ``update_info``."""
        return self.since(28)

    @property
    def fenced_packs(self) -> bool:
        """What two buffers hold is kept until it was loaded (from 0.33); before, the next pack may write over it."""
        return self.since(33)

    @property
    def unchecked_inner_names(self) -> bool:
        """A name that is unknown inside a known layer is dropped without a word (up to 0.22)."""
        return not self.since(23)

    @property
    def strict_bodies(self) -> bool:
        """Bodies are typed by the web framework, and only read with a JSON content type (from 0.32)."""
        return self.since(32)

    @property
    def silent_errors(self) -> bool:
        """A 500 is plain text without the error's words (0.17)."""
        return not self.since(18)
