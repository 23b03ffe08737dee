"""What is known of a window before its first byte: its packs, and the groups that are gathered for it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch
from weightwire.errors import ManifestError, StateError
from weightwire.messages import TensorMeta, TransferPlan, Window

from weightwire_torch.dtypes import may_become, torch_dtype, wire_name
from weightwire_torch.framing import Pack, packs


class Group(msgspec.Struct, frozen=True):
    """Tensors that are gathered in one step.

    Attributes:
        index: which group of the manifest.
        tensors: what the manifest says of them.
    """

    index: int
    tensors: tuple[TensorMeta, ...]

    def __str__(self) -> str:
        """Name it as in a sentence."""
        more = len(self.tensors) - 1
        return f"group {self.index} ({self.tensors[0].name!r}{f' and {more} more' if more else ''})"

    def checked(self, gathered: Sequence[object]) -> list[torch.Tensor]:
        """Return what was gathered if it is what the manifest promised.

        Raises:
            ManifestError: it is not; names the tensor.
        """
        if len(gathered) != len(self.tensors):
            raise ManifestError(f"The source gave {len(gathered)} tensors for {self}: {len(self.tensors)} are due.")
        return [_checked(meta, tensor) for meta, tensor in zip(self.tensors, gathered, strict=True)]


class Shipment(msgspec.Struct, frozen=True):
    """One window.

    Attributes:
        groups: what is gathered, in order.
        packs: what is sent, in order.
        before: bytes of the round that earlier windows carry.
        total: bytes of the round.
    """

    groups: tuple[Group, ...]
    packs: tuple[Pack, ...]
    before: int
    total: int

    @property
    def nbytes(self) -> int:
        """Bytes of this window."""
        return sum(pack.nbytes for pack in self.packs)

    @classmethod
    def of(cls, plan: TransferPlan, window: Window) -> Shipment:
        """Cut a window out of a plan.

        Raises:
            StateError: the window cuts through a group, so that no order of gathers fits it.
        """
        tensors = plan.manifest.tensors
        groups = tuple(
            Group(index, tensors[start:stop])
            for index, (start, stop) in enumerate(plan.manifest.groups)
            if start < window.stop and stop > window.start
        )
        if sum(len(group.tensors) for group in groups) != window.stop - window.start:
            raise StateError(
                f"Window {window.index} (tensors {window.start} to {window.stop}) cuts through {groups[0]} or "
                f"{groups[-1]}; windows must hold whole groups, since each group is gathered once."
            )
        return cls(
            groups=groups,
            packs=packs(tensors[window.start : window.stop], plan.geometry),
            before=sum(meta.nbytes for meta in tensors[: window.start]),
            total=plan.manifest.nbytes,
        )


def _checked(meta: TensorMeta, tensor: object) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise ManifestError(f"The source gave a {type(tensor).__name__} for {meta.name!r}: a tensor is due.")
    if tuple(tensor.shape) != meta.shape:
        raise ManifestError(f"{meta.name!r} has the shape {tuple(tensor.shape)}; the manifest says {meta.shape}.")
    if not may_become(tensor.dtype, torch_dtype(meta.dtype)):
        raise ManifestError(f"{meta.name!r} has the dtype {wire_name(tensor.dtype)}; the manifest says {meta.dtype}.")
    return tensor
