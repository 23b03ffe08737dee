"""What this distribution adds to Weightwire."""

from __future__ import annotations

from weightwire.hookspecs import hookimpl
from weightwire.registry import Registry


@hookimpl
def weightwire_register(registry: Registry) -> None:
    """Add nothing yet."""
