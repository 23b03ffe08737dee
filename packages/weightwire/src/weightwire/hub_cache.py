"""Where the Hugging Face cache of this machine keeps a model. Looked up by hand: nothing is ever downloaded."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def snapshot(model: str) -> Path | None:
    """The directory of a hub id in the local Hugging Face cache, at the revision that ``main`` had last."""
    if not _HUB_ID.fullmatch(model):
        return None
    repository = _hub_cache(os.environ) / f"models--{model.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    snapshot = repository / "snapshots" / revision
    return snapshot if snapshot.is_dir() else None


def _hub_cache(environ: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps what it downloaded; the same variables in the same order as its own."""
    if cache := environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(cache).expanduser()
    if home := environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface" / "hub"
