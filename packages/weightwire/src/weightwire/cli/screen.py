"""Where a command's words go: the result to stdout, all else to stderr; with ``--json`` one object to stdout."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

import msgspec
from rich.console import Console
from rich.text import Text

STDOUT, STDERR = 1, 2


class Screen:
    """The two streams of a command.

    Attributes:
        json: whether stdout takes one JSON object and nothing else.
        traceback: whether errors are shown with their traceback.
        out: the console on stdout.
        err: the console on stderr, for progress and errors.
    """

    def __init__(self, *, json: bool = False, traceback: bool = False) -> None:
        """Write to the streams as they are now. Colour and control characters only go to a terminal."""
        self.json = json
        self.traceback = traceback
        self.out = _console(sys.stdout)
        self.err = _console(sys.stderr)
        self._said = False

    def show(self, result: msgspec.Struct, *rendered: Text) -> None:
        """End a command: the *result* with ``--json``, otherwise what was *rendered* of it."""
        if self.json:
            self.show_json(result)
            return
        for part in rendered:
            self.out.print(part)

    def show_json(self, result: msgspec.Struct) -> None:
        """Write the one object. A second is dropped: an error after a result must not make the output unreadable."""
        if not self._said:
            self._said = True
            sys.stdout.write(msgspec.json.encode(result).decode() + "\n")

    def say(self, text: str, style: str = "") -> None:
        """Write one line for a person to stderr."""
        self.err.print(Text(text, style=style))

    @contextmanager
    def to_itself(self) -> Iterator[None]:
        """Keep stdout for the result: what libraries write to the file meanwhile goes to stderr.

        The gloo of torch up to 2.10 writes a line to it from C++ when a group comes together.
        """
        sys.stdout.flush()
        kept = os.dup(STDOUT)
        os.dup2(STDERR, STDOUT)
        try:
            yield
        finally:
            sys.stdout.flush()
            ctypes.CDLL(None).fflush(None)  # what C still holds back
            os.dup2(kept, STDOUT)
            os.close(kept)

    @contextmanager
    def logging(self) -> Iterator[None]:
        """Let what the libraries log, from warnings on, come out as lines of :meth:`say`."""
        logger, lines = logging.getLogger("weightwire"), _Lines(self)
        propagated, logger.propagate = logger.propagate, False
        logger.addHandler(lines)
        try:
            yield
        finally:
            logger.removeHandler(lines)
            logger.propagate = propagated


class _Lines(logging.Handler):
    def __init__(self, screen: Screen) -> None:
        super().__init__(logging.WARNING)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else None
        self._screen.say(f"{record.levelname.lower()}: {record.getMessage()}", style="yellow")
        if cause is not None:
            self._screen.say(f"  {cause}", style="yellow")


def pairs(rows: Iterable[tuple[str, str]]) -> Text:
    """A word and its value a line, the values under one another."""
    listed = list(rows)
    width = max((len(word) for word, _ in listed), default=0)
    text = Text()
    for word, value in listed:
        text.append(f"{word:<{width}}  ", style="dim").append(f"{value}\n")
    text.rstrip()
    return text


def _console(stream: TextIO) -> Console:
    return Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)
