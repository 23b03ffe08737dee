"""What this distribution adds to Weightwire."""

from __future__ import annotations

from weightwire.hookspecs import hookimpl
from weightwire.registry import DataPlaneEntry, Registry


@hookimpl
def weightwire_register(registry: Registry) -> None:
    """Add the plane that meets a stock server over the shim; never chosen unless it is named."""
    registry.add_data_plane(
        DataPlaneEntry(
            name="stock-shim",
            backends=("nccl",),
            factory="weightwire_testing.stock_plane:StockShimPlane",
            priority=-1,
        )
    )
