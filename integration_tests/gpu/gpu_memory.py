"""Device memory of both sides."""

from __future__ import annotations

import os
import subprocess

import torch

MIB = 1 << 20


def trainers(device: str) -> dict[str, float]:
    """What this process holds on its GPU, in MiB: by torch's count, and all that is in use there."""
    if device != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info()
    return {"allocated_mib": torch.cuda.memory_allocated() / MIB, "used_mib": (total - free) / MIB}


def of_group(pid: int) -> float:
    """MiB that the processes of a group hold on any GPU, as the driver counts them; -1.0 where that can't be told."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        out = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return -1.0
    rows = [line.split(",") for line in out.splitlines() if line.count(",") == 1]
    held = [float(used) for process, used in rows if used.strip().isdigit() and _leader(int(process)) == pid]
    return sum(held) if held else -1.0


def of_gpu(index: int) -> float:
    """MiB in use on a GPU, whoever uses them; -1.0 where that can't be told."""
    query = ["nvidia-smi", f"--id={index}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return float(subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.strip())
    except (OSError, subprocess.SubprocessError, ValueError):
        return -1.0


def _leader(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
