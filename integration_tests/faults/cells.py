"""The cells of faults.toml: what is tried, where, and what is expected of it."""

from __future__ import annotations

import tomllib
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
        return self.place.split()[1] == "stock"

    @property
    def workers(self) -> int:
        """How many tensor-parallel workers it has."""
        return int(self.place.partition(" tp")[2] or 1)

    @property
    def release(self) -> tuple[int, ...]:
        """The release of vLLM, as it is compared."""
        return tuple(map(int, self.version.split(".")))

    @property
    def tells_versions(self) -> bool:
        """Whether the server keeps the version that a client gives its weights."""
        return self.release >= (0, 27)

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


def rows(table: str, path: Path = TABLE) -> tuple[Row, ...]:
    """Read the rows of one table: ``cell`` or ``real``."""
    with path.open("rb") as file:
        return msgspec.convert(tomllib.load(file)[table], tuple[Row, ...])


def cells(*, quick: bool = False, only: str = "") -> tuple[Cell, ...]:
    """The cells of reference engines.

    Args:
        quick: only the first place of the rows that are marked so.
        only: only those in whose name this stands.
    """
    chosen = [row for row in rows("cell") if row.quick or not quick]
    made = [Cell(row, place) for row in chosen for place in (row.on[:1] if quick else row.on)]
    return tuple(cell for cell in made if only in str(cell))


def real_cells(*, only: str = "") -> tuple[Cell, ...]:
    """The cells of real servers, all of one server together; the first release is the newest."""
    made = [Cell(row, place) for row in rows("real") for place in row.on]
    made.sort(key=lambda cell: (cell.release, cell.stock), reverse=True)
    return tuple(cell for cell in made if only in str(cell))


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
