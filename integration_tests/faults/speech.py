"""What a trainer process is told and what it says, a line of JSON each."""

from __future__ import annotations

import msgspec


class Command(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What it is told.

    Attributes:
        do: ``connect``, ``push``, ``add``, ``recover``, ``wait`` or ``close``.
        urls: the engines to connect to, or to add.
        timeout: the option of the same name.
        plane: the option ``data_plane``.
        weights: what to push: A, B or C.
        version: what to call it.
        fail: where the source raises, or how this rank ends.
        halt: where to stop and wait.
        tamper: set another version between commit and verify.
    """

    do: str
    urls: tuple[str, ...] = ()
    timeout: float = 8.0
    plane: str = ""
    weights: str = "B"
    version: str = ""
    fail: str = ""
    halt: str = ""
    tamper: bool = False


class Answer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What it says.

    Attributes:
        seconds: how long a command took.
        error: the class of what it raised.
        text: its words.
        phase: the phase in which it happened.
        states: the state of each engine, by URL.
        engines: the engines that a push reached.
        halted: it has come to where it was to halt; the answer proper follows.
        ready: it waits for its first command.
    """

    seconds: float = 0.0
    error: str = ""
    text: str = ""
    phase: str = ""
    states: dict[str, str] = {}
    engines: tuple[str, ...] = ()
    halted: str = ""
    ready: bool = False
