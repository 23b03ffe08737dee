"""How a model becomes a manifest, and a group of its tensors what that manifest promised."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from weightwire.messages import Manifest, TensorMeta

from weightwire_torch.dtypes import may_become, torch_dtype, wire_name
from weightwire_torch.experts import Convert
from weightwire_torch.hf_names import converter, is_pretrained, left_out
from weightwire_torch.layout import Layout, learn
from weightwire_torch.manifest import checked, groups_by_layer, refuse_formless
from weightwire_torch.peft_layers import refuse_prompts
from weightwire_torch.quantised import refuse_unreadable
from weightwire_torch.slots import Slot
from weightwire_torch.units import Unit, units
from weightwire_torch.wrappers import refuse_flattened, unwrap

Form = Callable[[str, torch.Tensor], torch.Tensor]
"""From a name and a tensor of a model to a tensor on meta of its dtype and full shape. Raises ManifestError."""

_NOTHING = torch.empty(0, device="meta")  # stands for what no checkpoint holds


@dataclass(frozen=True, slots=True)
class Group:
    """What is gathered in one step."""

    units: tuple[Unit, ...]
    layout: Layout
    forms: tuple[torch.Tensor, ...]

    @property
    def slots(self) -> list[Slot]:
        """What has to be made whole, in order."""
        return [slot for unit in self.units for slot in unit.slots]

    def build(self, whole: list[torch.Tensor]) -> list[torch.Tensor]:
        """From the slots' tensors, made whole, to the group's in the manifest.

        Args:
            whole: is emptied on the way: each tensor is let go once it was used, so that no more than one adapted
                layer is there twice.
        """
        whole.reverse()
        made: dict[str, torch.Tensor] = {}
        for unit in self.units:
            made.update(zip(unit.names, unit.make([whole.pop() for _ in unit.slots]), strict=True))
        tensors = self.layout.apply(made)
        return [tensors[name] for name in self.layout.names]


class Blueprint:
    """The groups of one model."""

    def __init__(self, groups: Sequence[Group]) -> None:
        """Keep them in order."""
        self.groups = tuple(groups)

    @classmethod
    def of(cls, model: torch.nn.Module, form: Form) -> Blueprint:
        """Read a model's structure; gathers nothing.

        Args:
            model: the module, in whatever wrappers.
            form: shapes and dtypes of its tensors.

        Raises:
            ManifestError: a tensor can't be sent or has no shape yet, two names become one, or a kind of adapter can't
                be merged.
        """
        refuse_flattened(model)
        refuse_prompts(model)
        refuse_formless(model)
        inner = unwrap(model)
        found = units(model, buffers=is_pretrained(inner), leave_out=left_out(inner))
        forms = _forms(found, form)
        convert = converter(inner, lambda tensor: forms.get(id(tensor), _NOTHING))
        cuts = groups_by_layer([unit.names[0] for unit in found])
        return cls([_group(found[start:stop], forms, convert) for start, stop in cuts])

    @cached_property
    def digest(self) -> str:
        """Equal digests mean that the same places of a model are made whole, in the same steps."""
        places = [[slot.name for slot in group.slots] for group in self.groups]
        return hashlib.blake2b(json.dumps(places).encode(), digest_size=16).hexdigest()

    def manifest(self, *, dtype: str = "") -> Manifest:
        """Describe what will be sent.

        Args:
            dtype: send plain floating tensors in this dtype; empty for their own.

        Raises:
            ManifestError: there is nothing, or a name stands in it twice.
        """
        rows = [zip(group.layout.names, group.forms, strict=True) for group in self.groups]
        tensors = tuple(_meta(name, form, dtype) for group in rows for name, form in group)
        stops = list(accumulate(len(group.forms) for group in self.groups))
        return checked(Manifest(tensors=tensors, groups=tuple(pairwise([0, *stops]))))


def _forms(found: Sequence[Unit], form: Form) -> dict[int, torch.Tensor]:
    """The form of every tensor that something comes of, by its id."""
    made: dict[int, torch.Tensor] = {}
    for unit in found:
        for name, index in zip(unit.names, unit.forms, strict=True):
            refuse_unreadable(unit.slots[index])
            tensor = unit.slots[index].tensor
            made[id(tensor)] = form(name, tensor)
    return made


def _group(members: Sequence[Unit], forms: Mapping[int, torch.Tensor], convert: Convert) -> Group:
    named = {
        name: forms[id(unit.slots[index].tensor)]
        for unit in members
        for name, index in zip(unit.names, unit.forms, strict=True)
    }
    layout = learn(named, convert)
    made = layout.apply(named)
    return Group(tuple(members), layout, tuple(made[name] for name in layout.names))


def _meta(name: str, form: torch.Tensor, dtype: str) -> TensorMeta:
    cast = dtype and may_become(form.dtype, torch_dtype(dtype))
    return TensorMeta(name, dtype if cast else wire_name(form.dtype), tuple(form.shape))
