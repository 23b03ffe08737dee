"""Which tensors of a model belong to its checkpoint, in which order, and which of them can only be made together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from weightwire.errors import ManifestError

from weightwire_torch.names import Rule, normalise
from weightwire_torch.peft_layers import TunerLayer, adapted_layers, owner, rules
from weightwire_torch.peft_merging import merged
from weightwire_torch.slots import Slot, slots
from weightwire_torch.ties import identity, untied


@dataclass(frozen=True, slots=True)
class Unit:
    """Tensors of a model that become tensors of its checkpoint together: a parameter, or an adapted layer.

    Attributes:
        slots: what has to be made whole for it.
        names: what comes out, by name, all wrappers removed.
        forms: for each name, the index of the slot whose shape and dtype it has.
        layer: the layer whose adapters are merged; None where the one tensor is taken as it is.
        path: the name of that layer.
    """

    slots: tuple[Slot, ...]
    names: tuple[str, ...]
    forms: tuple[int, ...] = (0,)
    layer: torch.nn.Module | None = None
    path: str = ""

    def make(self, whole: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """From the slots' tensors, made whole, to as many tensors as there are names."""
        if self.layer is None:
            return list(whole)
        by_id = {id(slot.tensor): tensor for slot, tensor in zip(self.slots, whole, strict=True)}
        return merged(self.layer, by_id, [self._below_layer(self.slots[form]) for form in self.forms])

    def _below_layer(self, slot: Slot) -> tuple[str, str]:
        path, _, leaf = slot.name[len(self.path) + 1 :].rpartition(".")
        return path, leaf


def units(model: torch.nn.Module, *, buffers: bool = False, leave_out: Iterable[str] = ()) -> list[Unit]:
    """What a checkpoint of *model* is made of, in the model's order, without a tied head.

    Args:
        model: the module, wrappers and adapters and all.
        buffers: persistent buffers are part of the checkpoint.
        leave_out: names that are not, wrappers removed.

    Raises:
        ManifestError: two names become one.
    """
    unwanted = frozenset(leave_out)
    found = [unit for unit in _all(model, buffers=buffers) if not unwanted.issuperset(unit.names)]
    _refuse_same_names(found)
    wanted = untied((unit.names[0], _identities(unit)) for unit in found)
    return [unit for unit in found if unit.names[0] in wanted]


def _refuse_same_names(found: Iterable[Unit]) -> None:
    origin: dict[str, str] = {}
    for unit in found:
        for name, form in zip(unit.names, unit.forms, strict=True):
            here = unit.slots[form].name
            if origin.setdefault(name, here) != here:
                raise ManifestError(
                    f"{origin[name]!r} and {here!r} both become {name!r} once the wrappers' prefixes are removed.",
                    hint="pass the inner module, or rename one of the two",
                )


def _identities(unit: Unit) -> tuple[object, ...]:
    return tuple(identity(slot.tensor) for slot in unit.slots)


def _all(model: torch.nn.Module, *, buffers: bool) -> Iterator[Unit]:
    adapted = adapted_layers(model)
    to_checkpoint = rules(model)
    below: dict[str, list[Slot]] = {}
    for slot in slots(model, buffers=buffers or bool(adapted)):
        path = owner(slot.name, adapted)
        if path is not None:
            below.setdefault(path, []).append(slot)
    for slot in slots(model, buffers=buffers):
        path = owner(slot.name, adapted)
        if path is None:
            name = normalise(slot.name, to_checkpoint)
            yield from [Unit((slot,), (name,))] if name is not None else []
        elif path in below:
            yield from _adapted(path, adapted[path], below.pop(path), to_checkpoint)


def _adapted(path: str, layer: torch.nn.Module, held: Sequence[Slot], to_checkpoint: Sequence[Rule]) -> Iterator[Unit]:
    base = {id(module) for module in _base_modules(layer)}
    forms = [index for index, slot in enumerate(held) if id(slot.owner) in base and slot.leaf in slot.owner._parameters]  # noqa: SLF001
    names = [normalise(held[form].name, to_checkpoint) for form in forms]
    if names:
        yield Unit(tuple(held), tuple(filter(None, names)), tuple(forms), layer, path)


def _base_modules(layer: torch.nn.Module) -> Iterable[torch.nn.Module]:
    return cast("TunerLayer", layer).get_base_layer().modules()
