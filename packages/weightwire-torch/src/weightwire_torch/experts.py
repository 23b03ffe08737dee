"""Packed experts: one tensor of a module that a checkpoint holds as many, each a block of rows of one expert.

Transformers 5 keeps the experts of a layer in ``experts.gate_up_proj`` of shape (experts, 2 × rows, columns), while
checkpoints name them one by one, and so does every vLLM: 0.22 answers 200 to the packed name and keeps the old experts.
Blocks of rows are views, so a layer's experts are taken apart without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from weightwire.errors import ManifestError

Convert = Callable[[Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]]
"""From a module's tensors to its checkpoint's, both by name; tensors that are only renamed are passed through."""

_DIMENSIONS = 3
_PROBE_ROWS = 2  # of each block: with one, rows taken by turns would look like blocks
_PROBE_COLUMNS = 3  # unlike the rows, so that a transposed block is not taken for one


@dataclass(frozen=True, slots=True)
class Block:
    """Rows *start* to *stop* of one *expert*."""

    expert: int
    start: int
    stop: int

    def of(self, packed: torch.Tensor) -> torch.Tensor:
        """The block, as a view."""
        return packed[self.expert, self.start : self.stop]


def blocks(name: str, form: torch.Tensor, convert: Convert) -> dict[str, Block]:
    """Find out which block of a packed tensor each tensor of the checkpoint is.

    Args:
        name: of the packed tensor, in the module.
        form: a tensor on meta with its shape.
        convert: knows the checkpoint's form; it is asked about *form*, and about a small tensor with numbered elements.

    Returns:
        The blocks by checkpoint name; empty where the tensor is not made of blocks, or not of equal ones.
    """
    if form.dim() != _DIMENSIONS:
        return {}
    try:
        parts = convert({name: form})
    except ManifestError:  # it becomes something only together with others (Ernie 4.5 VL: text and vision experts)
        return {}
    per_expert = len(parts) // form.shape[0]
    if per_expert == 0 or form.shape[1] % per_expert or len(parts) != per_expert * form.shape[0]:
        return {}
    rows = form.shape[1] // per_expert
    if any(part.shape != (rows, form.shape[2]) for part in parts.values()):
        return {}
    return _numbered(name, form.shape[0], per_expert, rows, convert)


def _numbered(name: str, experts: int, per_expert: int, rows: int, convert: Convert) -> dict[str, Block]:
    shape = (experts, per_expert * _PROBE_ROWS, _PROBE_COLUMNS)
    probe = torch.arange(experts * shape[1] * shape[2]).reshape(shape)
    found: dict[str, Block] = {}
    for part, values in convert({name: probe}).items():
        first = int(values.reshape(-1)[0]) // _PROBE_COLUMNS
        expert, row = divmod(first, shape[1])
        if not torch.equal(values, probe[expert, row : row + _PROBE_ROWS]):
            return {}
        index = row // _PROBE_ROWS
        found[part] = Block(expert, index * rows, (index + 1) * rows)
    return found
