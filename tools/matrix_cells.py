"""The matrix as data: what integration_tests/matrix.toml holds, read and checked."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Literal

import msgspec

ROOT = Path(__file__).resolve().parent.parent
MATRIX = ROOT / "integration_tests" / "matrix.toml"


class Cell(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server and what sends to it; the file's head says what each field means."""

    vllm: str
    engine: Literal["stock", "ours"]
    layout: Literal["tp1", "tp2", "dp2"]
    plane: Literal["gloo", "stock-shim", "nccl"]
    trainer: Literal["plain", "fsdp2", "deepspeed", "trl"]
    tier: Literal["contract", "cpu", "gpu"]
    expect: Literal["pass", "refuse"]
    setup: str = ""
    says: str = ""
    why: str = ""

    @property
    def id(self) -> str:
        """Its name, in results and on the command line."""
        parts = (self.vllm, self.engine, self.layout, self.plane, self.trainer, self.setup, self.tier)
        return "-".join(part for part in parts if part)


class TrainerSide(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An environment that the unit suites are run in."""

    python: str
    torch: str
    packages: Literal["floor", "newest"]
    expect: Literal["pass"] = "pass"

    @property
    def id(self) -> str:
        """Its name, in results and on the command line."""
        return f"python{self.python}-torch{self.torch}-{self.packages}"


class Matrix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of it."""

    cells: tuple[Cell, ...]
    trainer_sides: tuple[TrainerSide, ...]

    @property
    def everything(self) -> tuple[Cell | TrainerSide, ...]:
        """In the order in which it is run: what is quick first, then release by release, so that each starts once."""
        tiers = {"contract": 0, "cpu": 1, "gpu": 2}
        cells = sorted(self.cells, key=lambda cell: (tiers[cell.tier], version_key(cell.vllm)))
        return (*cells, *self.trainer_sides)


def version_key(version: str) -> tuple[int, ...]:
    """A release's place in order."""
    return tuple(int(part) for part in version.split("."))


def load(path: Path = MATRIX) -> Matrix:
    """Read the matrix.

    Raises:
        ValueError: a cell stands there twice, or does not say what it should.
    """
    matrix = msgspec.toml.decode(path.read_bytes(), type=Matrix)
    twice = [name for name, count in Counter(each.id for each in matrix.everything).items() if count > 1]
    if twice:
        raise ValueError(f"{', '.join(twice)}: twice in {path}")
    for cell in matrix.cells:
        _check(cell)
    return matrix


def _check(cell: Cell) -> None:
    refuses = cell.expect == "refuse"
    if refuses != bool(cell.says) or refuses != bool(cell.why):
        raise ValueError(f"{cell.id}: a cell that refuses says how and why, and no other does")
    if refuses and cell.tier != "contract":
        raise ValueError(f"{cell.id}: refusals are tried on the reference engine, on the tier contract")
    if (cell.plane == "gloo") != (cell.engine == "ours" and cell.tier != "gpu"):
        raise ValueError(f"{cell.id}: gloo is how our engine is fed without a GPU, and vLLM's own never is")
