"""Where a module keeps its tensors: places that stay while trainers put other tensors in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Slot:
    """One place of one module.

    Attributes:
        name: the name of the tensor in the module that was asked, wrappers included.
        owner: the module that holds it.
        leaf: its name in there.
    """

    name: str
    owner: torch.nn.Module
    leaf: str

    @property
    def tensor(self) -> torch.Tensor:
        """What is there now: optimizers, frameworks and ``load_state_dict(assign=True)`` put others there."""
        held = self.owner._parameters.get(self.leaf)  # noqa: SLF001 - attributes may be computed (PEFT)
        found = self.owner._buffers.get(self.leaf) if held is None else held  # noqa: SLF001 - likewise
        if found is None:
            raise LookupError(f"The model no longer has the tensor {self.name!r}.")
        return found


def slots(model: torch.nn.Module, *, buffers: bool = False) -> Iterator[Slot]:
    """Every parameter of *model*, in the order of ``named_parameters``; a shared one at each of its places.

    Args:
        model: the module, wrappers and all.
        buffers: also yield the persistent buffers, behind the parameters of their own module.
    """
    for prefix, owner in model.named_modules(remove_duplicate=False):
        leaves = [leaf for leaf, parameter in owner._parameters.items() if parameter is not None]  # noqa: SLF001
        if buffers:
            leaves += persistent(owner)
        for leaf in leaves:
            yield Slot(f"{prefix}.{leaf}" if prefix else leaf, owner, leaf)


def persistent(owner: torch.nn.Module) -> list[str]:
    """The names in *owner* of its buffers that belong to a checkpoint."""
    passing = owner._non_persistent_buffers_set  # noqa: SLF001 - what state_dict itself reads
    return [leaf for leaf, buffer in owner._buffers.items() if buffer is not None and leaf not in passing]  # noqa: SLF001
