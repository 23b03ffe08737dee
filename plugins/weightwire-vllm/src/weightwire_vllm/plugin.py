"""What this distribution registers. Imports nothing of what it names."""

from __future__ import annotations

from weightwire.hookspecs import hookimpl
from weightwire.registry import ControlPlaneEntry, Registry

SINCE, BEFORE = "0.21", "0.34"
"""The releases of vLLM that were read, and mostly run: from the first, inclusive, to the last, exclusive."""


@hookimpl
def weightwire_register(registry: Registry) -> None:
    """Register the control plane."""
    registry.add_control_plane(
        ControlPlaneEntry(
            name="vllm",
            engine="vllm",
            since=SINCE,
            before=BEFORE,
            identify="weightwire.vllm.identify:version",
            factory="weightwire_vllm.control:create",
            serve_args="weightwire_vllm.serve_args:advise",
        )
    )
