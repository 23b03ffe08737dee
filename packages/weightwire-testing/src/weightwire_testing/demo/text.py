"""Real sentences, and tokens of one byte each."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from importlib.resources import files

BEGIN = 256
"""The token before every sentence; the bytes are the tokens below it."""

VOCABULARY = 320
"""256 bytes and a begin, up to a multiple of 64, as servers pad it anyway."""

END = ord("\n")
"""The token after every sentence."""

FIRST, LAST = ord(" "), ord("~")
"""The printable characters of one byte."""

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
    """Tokens up to the end of the sentence as printable text; what a model makes up before it can write is a dot."""
    kept = itertools.takewhile(lambda token: token != END, tokens)
    return "".join(chr(token) if FIRST <= token <= LAST else "·" for token in kept)


def half(sentence: str) -> str:
    """The first half of a sentence's words, to be completed."""
    words = sentence.split(" ")
    return " ".join(words[: (len(words) + 1) // 2])
