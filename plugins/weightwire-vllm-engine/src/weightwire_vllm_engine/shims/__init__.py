"""What one release of vLLM or another has wrong, a file each, applied only where it is.

Each file says in :data:`SHIM` for which releases and why, and when it may go. They mend vLLM, not our wire: an engine
of vLLM's own needs them as well, on a CPU, so the stock shim of weightwire-testing applies them too.
"""

from __future__ import annotations

import logging
from importlib import import_module

from weightwire.versions import within

from weightwire_vllm_engine.shims import accelerator_sync, cpu_device, moe_cpu, tied_head_cpu
from weightwire_vllm_engine.shims.shim import Shim

log = logging.getLogger(__name__)

SHIMS: tuple[Shim, ...] = (accelerator_sync.SHIM, cpu_device.SHIM, moe_cpu.SHIM, tied_head_cpu.SHIM)

_applied: set[str] = set()


def needed(version: str, device_type: str) -> tuple[Shim, ...]:
    """The shims for vLLM *version* on a platform of *device_type* (``"cpu"``, ``"cuda"`` …)."""
    return tuple(
        shim
        for shim in SHIMS
        if shim.device_type == device_type and within(version, since=shim.since, before=shim.before)
    )


def apply(version: str) -> None:
    """Apply what this release needs on this process's platform, each once, however often it is asked for."""
    platform = import_module("vllm.platforms").current_platform
    for shim in needed(version, str(platform.device_type)):
        if shim.name not in _applied:
            _applied.add(shim.name)
            shim.apply()
            log.info("vLLM %s: applied the shim %s: %s", version, shim.name, shim.why)
