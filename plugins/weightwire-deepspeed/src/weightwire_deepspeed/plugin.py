"""What this distribution registers. Imports nothing heavy: discovery also runs where DeepSpeed is never used."""

from __future__ import annotations

from weightwire.hookspecs import hookimpl
from weightwire.registry import Registry, WeightSourceEntry


@hookimpl
def weightwire_register(registry: Registry) -> None:
    """Add the source for DeepSpeed engines and the modules in them."""
    registry.add_weight_source(
        WeightSourceEntry(
            name="deepspeed",
            claim="weightwire_deepspeed.claim:claim_engine",
            factory="weightwire_deepspeed.source:DeepSpeedSource",
        )
    )
