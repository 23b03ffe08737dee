"""From the tensors of one group of a module to those of its checkpoint: renamed, cut, or converted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from weightwire.errors import ManifestError

from weightwire_torch.experts import Block, Convert, blocks


@dataclass(frozen=True, slots=True)
class Layout:
    """How a group is written to a checkpoint.

    Attributes:
        renamed: checkpoint names, by name in the module, of tensors that are the same in both.
        cut: the blocks, by checkpoint name, of each tensor that is taken apart.
        converted: names in the module of the tensors that only *convert* can make those of a checkpoint of.
        names: every checkpoint name, in order.
        convert: what knows the checkpoint's form.
    """

    renamed: Mapping[str, str]
    cut: Mapping[str, Mapping[str, Block]]
    converted: tuple[str, ...]
    names: tuple[str, ...]
    convert: Convert

    def apply(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Turn a group into checkpoint tensors; only what is *converted* takes memory of its own."""
        made: dict[str, torch.Tensor] = {}
        for name, tensor in tensors.items():
            if name in self.renamed:
                made[self.renamed[name]] = tensor
            for part, block in self.cut.get(name, {}).items():
                made[part] = block.of(tensor)
        if self.converted:
            made.update(self.convert({name: tensors[name] for name in self.converted}))
        return made


def learn(forms: Mapping[str, torch.Tensor], convert: Convert) -> Layout:
    """Find out what becomes of a group.

    Args:
        forms: tensors on meta, by name in the module.
        convert: what knows the checkpoint's form.

    Raises:
        ManifestError: taken apart, the group does not give what it gives as a whole.
    """
    whole = convert(forms)
    origin = {id(form): name for name, form in forms.items()}
    renamed = {origin[id(form)]: name for name, form in whole.items() if id(form) in origin}
    changed = [name for name in forms if name not in renamed]
    cut = {name: found for name in changed if (found := blocks(name, forms[name], convert))}
    converted = tuple(name for name in changed if name not in cut)
    layout = Layout(renamed, cut, converted, (), convert)
    made = layout.apply(forms)
    if made.keys() != whole.keys():
        raise ManifestError(
            f"The checkpoint's names of {next(iter(forms))!r} and its neighbours can't be told: together they "
            f"become {len(whole)} tensors, one by one {len(made)}.",
            hint="this is a fault of weightwire-torch: please report it with the model's class",
        )
    return Layout(renamed, cut, converted, tuple(made), convert)
