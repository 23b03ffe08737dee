"""Is the engine asleep, or only paused?

``/is_sleeping`` says true for both, in every release up to 0.33, and ``/is_paused`` does too. The gauge
``vllm:engine_sleep_state`` tells them apart: its series ``awake`` is set by ``/sleep`` and ``/wake_up`` alone.
"""

from __future__ import annotations

import re

AWAKE = re.compile(r'^vllm:engine_sleep_state\{[^}]*sleep_state="awake"[^}]*\}\s+(\S+)\s*$', re.MULTILINE)


def asleep(metrics: str) -> bool:
    """Whether any replica sleeps.

    Args:
        metrics: the text of ``GET /metrics``; empty, or without the gauge, where the server keeps no statistics.
    """
    return any(float(value) == 0.0 for value in AWAKE.findall(metrics))
