"""Weightwire for TRL and Transformers: a ``weight_transfer=`` for TRL's asynchronous trainers, a callback for others.

The two names are imported when they are first used: discovery imports this package, and must load no framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weightwire_trl.callback import WeightTransferCallback
    from weightwire_trl.transfer import WeightTransfer

__all__ = ["WeightTransfer", "WeightTransferCallback"]

_ROOMS = {"WeightTransfer": "weightwire_trl.transfer", "WeightTransferCallback": "weightwire_trl.callback"}


def __getattr__(name: str) -> object:
    """Import what was asked for."""
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ROOMS[name]), name)
