"""Real sentences, and tokens of one byte each."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

BEGIN = 256
"""The token before every sentence; the bytes are the tokens below it."""

VOCABULARY = 320
"""256 bytes and a begin, up to a multiple of 64, as servers pad it anyway."""

END = ord("\n")
"""The token after every sentence."""

OPENING = "The early bird"
"""The beginning of a sentence that is trained on, to be completed by the engine."""

HELD = 4
"""Sentences that are held back: the model never sees them, so that its opinion of them keeps moving."""


def sentences() -> tuple[str, ...]:
    """Proverbs, the older the better, none of them anybody's."""
    return tuple(files(__package__).joinpath("sentences.txt").read_text(encoding="utf-8").splitlines())


def trained() -> tuple[str, ...]:
    """What the model is trained on."""
    return sentences()[:-HELD]


def held() -> tuple[str, ...]:
    """What engine and trainer are compared on."""
    return sentences()[-HELD:]


def encode(sentence: str) -> list[int]:
    """A whole sentence as tokens."""
    return [*opening(sentence), END]


def opening(words: str) -> list[int]:
    """The beginning of a sentence as tokens, to be completed."""
    return [BEGIN, *words.encode()]


def decode(tokens: Iterable[int]) -> str:
    """Tokens up to the end of the sentence as text; what is no text is shown as a box."""
    kept = []
    for token in tokens:
        if token == END:
            break
        kept.append(token if token < BEGIN else ord("?"))
    return bytes(kept).decode("utf-8", "replace")
