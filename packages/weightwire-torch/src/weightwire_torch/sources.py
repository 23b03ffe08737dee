"""The weights of a plain ``torch.nn.Module``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from weightwire.messages import Manifest
from weightwire.options import Options
from weightwire.planes import RankGroup

from weightwire_torch.manifest import manifest_of
from weightwire_torch.names import WRAPPERS, Rule, normalise_all
from weightwire_torch.ranks import rank_group
from weightwire_torch.ties import without_twins

_PLAIN_CLAIM = 10


def claim_module(model: object) -> int:
    """Claim every module; what is sharded is refused by name when its manifest is made."""
    return _PLAIN_CLAIM if isinstance(model, torch.nn.Module) else 0


def checkpoint_parameters(model: torch.nn.Module, rules: Sequence[Rule] = WRAPPERS) -> dict[str, str]:
    """Which parameters ``save_pretrained`` would write, in the model's order.

    Buffers are left out: what a server needs of them it computes itself (rotary frequencies, masks). Of parameters
    that share storage one is kept (:func:`~weightwire_torch.ties.without_twins`).

    Returns:
        Checkpoint name to the name in *model*.

    Raises:
        ManifestError: two names become one.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    names = {new: old for old, new in normalise_all(parameters, rules).items()}
    kept = without_twins((new, parameters[old]) for new, old in names.items())
    return {new: names[new] for new, _ in kept}


class ModuleSource:
    """Implements :class:`~weightwire.planes.WeightSource`: every tensor is whole, on every rank, and sent as it is."""

    def __init__(self, model: torch.nn.Module, options: Options, *, dtype: str = "") -> None:
        """Look at nothing yet.

        Args:
            model: the module, bare or in wrappers that change only names.
            options: the session's; none concerns a plain module.
            dtype: send floating tensors in this dtype; empty for their own.
        """
        del options
        self.ranks: RankGroup = rank_group()
        self._model = model
        self._dtype = dtype
        self._parameters: tuple[str, ...] = ()
        self._manifest: Manifest | None = None

    def manifest(self) -> Manifest:
        """Describe the parameters. Made once: names and shapes of a model in training do not change.

        Raises:
            ManifestError: a parameter can't be sent; names it.
        """
        if self._manifest is None:
            names = checkpoint_parameters(self._model)
            rows = [(new, self._model.get_parameter(old)) for new, old in names.items()]
            self._manifest = manifest_of(rows, dtype=self._dtype)
            self._parameters = tuple(names.values())
        return self._manifest

    def gather(self, group: int) -> Sequence[torch.Tensor]:
        """The parameters of one group, in place.

        They are looked up anew: optimizers and ``load_state_dict(assign=True)`` may have put others there.
        """
        start, stop = self.manifest().groups[group]
        return [self._model.get_parameter(name).detach() for name in self._parameters[start:stop]]
