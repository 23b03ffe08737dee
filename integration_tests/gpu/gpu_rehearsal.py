"""The plane of a rehearsal: NCCL's own, over the stand-in for NCCL and a GPU."""

from __future__ import annotations

import os

from weightwire.hookspecs import hookimpl
from weightwire.registry import DataPlaneEntry, Registry
from weightwire_testing.nccl_stand_in import stand_in
from weightwire_torch.nccl_plane import NcclPlane


@hookimpl
def weightwire_register(registry: Registry) -> None:
    """Add it; it is used by name alone."""
    registry.add_data_plane(
        DataPlaneEntry(name="nccl-rehearsal", backends=("nccl",), factory="gpu_rehearsal:plane", priority=-1)
    )


def plane() -> NcclPlane:
    """Make it; it says that it is the release that ``REHEARSED_NCCL`` names."""
    return NcclPlane(lambda _: stand_in(version=os.environ.get("REHEARSED_NCCL", "2.29.7")))
