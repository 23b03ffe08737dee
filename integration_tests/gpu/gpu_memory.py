"""Device memory, process by process: others may run beside on the same GPU."""

from __future__ import annotations

import os
import subprocess


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


def _leader(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
