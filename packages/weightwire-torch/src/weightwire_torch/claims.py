"""Which models the sources here can read. Imports no torch: what is no model is refused at once; who has one has torch.

Other plugins' claims are made of the same.
"""

from __future__ import annotations

import sys
from pathlib import Path

_CLAIM = 10


def is_a(thing: object, path: str) -> bool:
    """Whether *thing* is an instance of the class at *path* (``package.module:Class``).

    Nothing is imported for that: where the module of the class was never imported, nothing is an instance of it.
    """
    found = _loaded(path)
    return found is not None and isinstance(thing, found)


def loaded(*paths: str) -> tuple[type, ...]:
    """Those of the classes at *paths* whose modules were imported."""
    return tuple(filter(None, map(_loaded, paths)))


def is_module(model: object) -> bool:
    """Whether *model* is a ``torch.nn.Module``."""
    return is_a(model, "torch.nn:Module")


def claim_module(model: object) -> int:
    """Claim every module; what is sharded is refused by name when its manifest is made."""
    return _CLAIM if is_module(model) else 0


def claim_checkpoint(model: object) -> int:
    """Claim paths; what is wrong with one is said when it is read."""
    return _CLAIM if isinstance(model, str | Path) else 0


def _loaded(path: str) -> type | None:
    where, _, name = path.partition(":")
    found = getattr(sys.modules.get(where), name, None)
    return found if isinstance(found, type) else None
