"""Between torch dtypes and their names on the wire."""

from __future__ import annotations

import torch
from weightwire.errors import ManifestError
from weightwire.messages import ITEM_BYTES

TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_BYTES}
"""Every dtype that can be sent, by its name on the wire."""

PLAIN_FLOATS = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
"""Dtypes whose values mean the same in each other; fp8 is not among them, since it has a scale beside it."""


def wire_name(dtype: torch.dtype) -> str:
    """The dtype's name on the wire, whether it can be sent or not: ``torch.bfloat16`` is ``"bfloat16"``."""
    return str(dtype).removeprefix("torch.")


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a name on the wire.

    Raises:
        ManifestError: the dtype can't be sent.
    """
    if name not in TORCH_DTYPES:
        raise ManifestError(f"The dtype {name!r} can't be sent; known are {', '.join(sorted(TORCH_DTYPES))}.")
    return TORCH_DTYPES[name]


def may_become(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Whether a tensor of *dtype* may travel as *other*: unchanged, or rounded between plain floating dtypes."""
    return dtype == other or (dtype in PLAIN_FLOATS and other in PLAIN_FLOATS)
