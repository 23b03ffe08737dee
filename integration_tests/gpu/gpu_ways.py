"""Which way rounds came into a server that runs our engine, from what the engine logs."""

from __future__ import annotations

from pathlib import Path

from gpu_context import Results

LANDED, RELOADED = "Weightwire: the round landed by the plan", "Weightwire: the round took vLLM's reload: "


def tell(results: Results, log: str) -> None:
    """Tell how many rounds landed by the plan, how many took vLLM's reload, and why the last of those did."""
    lines = Path(log).read_text(errors="replace").splitlines() if log else []
    why = [line.partition(RELOADED)[2] for line in lines if RELOADED in line]
    landed = sum(LANDED in line for line in lines)
    if landed or why:
        told = {"landed": landed, "reloaded": len(why), "why": why[-1] if why else ""}
        results.tell("rounds by the plan, and by vLLM's reload", ok=landed > len(why), **told)
