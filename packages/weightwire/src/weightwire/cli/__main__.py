"""``python -m weightwire.cli`` is the same as ``weightwire``."""

from __future__ import annotations

from weightwire.cli import main

main()
