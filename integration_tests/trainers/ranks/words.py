"""What every rank is told on its command line, and how it says what came of it."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    """Where to push, what to begin with, where to write to, and what to do; a script may add words of its own."""
    made = argparse.ArgumentParser()
    made.add_argument("--url", required=True)
    made.add_argument("--checkpoint", required=True, type=Path)
    made.add_argument("--out", required=True, type=Path)
    made.add_argument("--options", type=json.loads, default={}, help="of the session")
    return made


def rank() -> int:
    """This rank, as the launcher says it."""
    return int(os.environ.get("RANK", "0"))


def say(out: Path, name: str, said: dict[str, object]) -> None:
    """Write down what came of what *name* says, on this rank."""
    (out / f"{name}.{rank()}.json").write_text(json.dumps(said))
