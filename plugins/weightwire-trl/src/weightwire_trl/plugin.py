"""What this distribution registers. Imports nothing heavy: discovery also runs where no trainer is ever used."""

from __future__ import annotations

from weightwire.hookspecs import hookimpl
from weightwire.registry import Registry, WeightSourceEntry


@hookimpl
def weightwire_register(registry: Registry) -> None:
    """Add the source for trainers: ``weightwire.connect(url, trainer)``."""
    registry.add_weight_source(
        WeightSourceEntry(
            name="trainer", claim="weightwire_trl.source:claim_trainer", factory="weightwire_trl.source:trainer_source"
        )
    )
