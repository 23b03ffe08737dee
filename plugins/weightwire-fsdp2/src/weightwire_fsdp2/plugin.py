"""What this distribution registers. Imports nothing heavy: discovery also runs where torch is never used."""

from __future__ import annotations

from weightwire.hookspecs import hookimpl
from weightwire.registry import Registry, WeightSourceEntry


@hookimpl
def weightwire_register(registry: Registry) -> None:
    """Add the source for sharded modules."""
    registry.add_weight_source(
        WeightSourceEntry(
            name="fsdp2", claim="weightwire_fsdp2.claim:claim_sharded", factory="weightwire_fsdp2.source:Fsdp2Source"
        )
    )
