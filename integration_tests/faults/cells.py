"""The cells of faults.toml: what is tried, where, and what is expected of it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec

TABLE = Path(__file__).parent.parent / "faults.toml"
PHASES = ("connect", "open", "pause", "begin", "transfer", "commit", "verify", "resume", "close")


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[[cell]]`` of the table; see its head."""

    phase: str
    fault: str
    on: tuple[str, ...]
    raises: str
    state: str | tuple[str, ...]
    serves: str | tuple[str, ...]
    next: str
    inject: str = ""
    source: str = ""
    ranks: str = ""
    trainer: str = ""
    scene: str = ""
    timeout: float = 8.0
    hang: bool = False
    quick: bool = False

    @property
    def states(self) -> tuple[str, ...]:
        """What each engine is left as."""
        return (self.state,) if isinstance(self.state, str) else self.state

    @property
    def serve(self) -> tuple[str, ...]:
        """What each engine serves."""
        return (self.serves,) if isinstance(self.serves, str) else self.serves


class Cell(msgspec.Struct, frozen=True):
    """One row at one place."""

    row: Row
    place: str

    @property
    def version(self) -> str:
        """The release of vLLM."""
        return self.place.split()[0]

    @property
    def stock(self) -> bool:
        """Whether the server runs vLLM's own weight-transfer engine."""
        return self.place.endswith(" stock")

    def __str__(self) -> str:
        """Name it in a line."""
        return f"{self.row.phase}: {self.row.fault} on {self.place}"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a cell.

    Attributes:
        raises: the class of the error.
        states: what each engine was left as.
        serves: what each served.
        next: what brought weights C into it; ``failed: …`` where nothing did.
        over: seconds over the deadline.
        text: the error's words.
    """

    raises: str
    states: tuple[str, ...]
    serves: tuple[str, ...]
    next: str
    over: float = 0.0
    text: str = ""

    @property
    def torn_resumed(self) -> int:
        """Engines that serve what nobody ever pushed."""
        return self.serves.count("a mix")

    @property
    def lost(self) -> int:
        """Engines that are lost."""
        return self.states.count("lost")


def rows(path: Path = TABLE) -> tuple[Row, ...]:
    """Read the table."""
    with path.open("rb") as file:
        return msgspec.convert(tomllib.load(file)["cell"], tuple[Row, ...])


def cells(*, quick: bool = False, only: str = "") -> Iterator[Cell]:
    """Every cell; with *quick* the first place of the rows that are marked so; those whose name has *only* in it."""
    for row in rows():
        if quick and not row.quick:
            continue
        for place in row.on[:1] if quick else row.on:
            cell = Cell(row, place)
            if only in str(cell):
                yield cell


def differences(row: Row, found: Found) -> tuple[str, ...]:
    """Where what was found is not what was expected, a phrase each."""
    pairs = (
        ("raises", row.raises, found.raises),
        ("state", row.states, found.states),
        ("serves", row.serve, found.serves),
        ("next", row.next, found.next),
    )
    wrong = [f"{name}: {_shown(have)} instead of {_shown(want)}" for name, want, have in pairs if want != have]
    return (*wrong, *([f"{found.over:.1f} s over the deadline"] if found.over > 0 else ()))


def _shown(value: str | tuple[str, ...]) -> str:
    return (value or "nothing") if isinstance(value, str) else ", ".join(value)
