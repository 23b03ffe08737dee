"""What one release of vLLM or another has wrong, a file each, applied only where it is.

Each file says in :data:`SHIM` for which releases and why, and when it may go. They mend vLLM, not our wire: an engine
of vLLM's own needs them as well, on a CPU, so the stock shim of weightwire-testing applies them too.
"""

from __future__ import annotations

import logging
from importlib import import_module

from weightwire.versions import within

from weightwire_vllm_engine.shims import accelerator_sync, cpu_device, moe_cpu, prompt_pause, tied_head_cpu
from weightwire_vllm_engine.shims.shim import ANY_DEVICE, Shim

log = logging.getLogger(__name__)

SHIMS: tuple[Shim, ...] = (
    accelerator_sync.SHIM,
    cpu_device.SHIM,
    moe_cpu.SHIM,
    prompt_pause.SHIM,
    tied_head_cpu.SHIM,
)

_applied: set[str] = set()


def needed(version: str, *device_types: str) -> tuple[Shim, ...]:
    """The shims for vLLM *version* on platforms of *device_types* (``"cpu"``, ``"cuda"`` …)."""
    return tuple(
        shim
        for shim in SHIMS
        if shim.device_type in device_types and within(version, since=shim.since, before=shim.before)
    )


def apply(version: str, *, on_any_device: bool = True) -> None:
    """Apply what this release needs on this process's platform, each once, however often it is asked for.

    Args:
        version: vLLM's.
        on_any_device: also those that the kind of device has no part in: our engine gains by them, vLLM's own can do
            without.
    """
    device_type = str(import_module("vllm.platforms").current_platform.device_type)
    for shim in needed(version, device_type, *([ANY_DEVICE] if on_any_device else [])):
        if shim.name not in _applied:
            _applied.add(shim.name)
            shim.apply()
            log.info("vLLM %s: applied the shim %s: %s", version, shim.name, shim.why)
