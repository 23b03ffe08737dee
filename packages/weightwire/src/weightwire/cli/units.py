"""Numbers as people read them."""

from __future__ import annotations

STEP = 1024


def size(nbytes: float) -> str:
    """Bytes in the binary unit that leaves one to four digits before the point."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < STEP:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= STEP
    return f"{nbytes:.1f} TiB"


def seconds(value: float) -> str:
    """Seconds, or milliseconds below one."""
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.1f} ms"
