"""What this distribution adds to Weightwire."""

from __future__ import annotations

from weightwire.hookspecs import hookimpl
from weightwire.registry import CommandEntry, DataPlaneEntry, Registry


@hookimpl
def weightwire_register(registry: Registry) -> None:
    """Add the demo, and the plane that meets a stock server over the shim; never chosen unless it is named."""
    registry.add_command(
        CommandEntry(
            name="demo",
            command="weightwire_testing.demo.command:demo",
            help="Train a small model while an engine serves it.",
        )
    )
    registry.add_data_plane(
        DataPlaneEntry(
            name="stock-shim",
            backends=("nccl",),
            factory="weightwire_testing.stock_plane:StockShimPlane",
            priority=-1,
        )
    )
