"""What this distribution registers. Imports nothing heavy: discovery also runs where torch is never used."""

from __future__ import annotations

from weightwire.hookspecs import hookimpl
from weightwire.registry import DataPlaneEntry, Registry, WeightSourceEntry


@hookimpl
def weightwire_register(registry: Registry) -> None:
    """Add the sources for plain modules and checkpoints, and the planes."""
    registry.add_weight_source(
        WeightSourceEntry(
            name="module",
            claim="weightwire_torch.claims:claim_module",
            factory="weightwire_torch.sources:ModuleSource",
        )
    )
    registry.add_weight_source(
        WeightSourceEntry(
            name="checkpoint",
            claim="weightwire_torch.claims:claim_checkpoint",
            factory="weightwire_torch.checkpoint_source:CheckpointSource",
        )
    )
    registry.add_data_plane(
        DataPlaneEntry(
            name="gloo",
            backends=("weightwire",),
            factory="weightwire_torch.gloo_plane:GlooPlane",
            usable="weightwire_torch.gloo_plane:usable",
        )
    )
    registry.add_data_plane(
        DataPlaneEntry(
            name="nccl",
            backends=("nccl", "weightwire"),
            factory="weightwire_torch.nccl_plane:NcclPlane",
            usable="weightwire_torch.nccl_plane:usable",
            priority=10,
            our_engine_on="cuda",
        )
    )
