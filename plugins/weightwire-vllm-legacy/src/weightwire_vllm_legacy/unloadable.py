"""Tensors that a release takes with 200 and does not load, or fails on when all bytes are there. Pure."""

from __future__ import annotations

from weightwire import fused
from weightwire.errors import ManifestError
from weightwire.messages import Manifest
from weightwire.vllm.behaviour import Behaviour
from weightwire.wording import some

CACHE_SCALES = (".q_scale", ".k_scale", ".v_scale")


def refuse(manifest: Manifest, version: str, known: Behaviour) -> None:
    """Refuse modules that hold single numbers alone: before 0.20 their loading is not counted, or not implemented.

    Such a module keeps its old value and the answer is 200; the scales of a KV cache end the update with an error when
    everything was received, and leave the engine torn.

    Raises:
        ManifestError: there are such tensors; names them.
    """
    if known.reloads_scalars:
        return
    numels = {tensor.name: tensor.numel for tensor in manifest.tensors}
    lone = [
        name
        for names in fused.modules(manifest.names).values()
        if all(numels[name] == 1 for name in names)
        for name in names
    ]
    scales = [name for name in manifest.names if name.endswith(CACHE_SCALES)]
    if found := list(dict.fromkeys(lone + scales)):
        raise ManifestError(
            f"vLLM {version} can't reload single numbers that are no part of a larger module: {some(found)}.",
            hint="serve with vLLM 0.20 or newer, or leave them out of what is sent and they stay as they are",
        )
