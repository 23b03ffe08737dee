"""The weights of a ``torch.nn.Module``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from weightwire.errors import ManifestError
from weightwire.messages import Manifest
from weightwire.options import Options
from weightwire.planes import RankGroup

from weightwire_torch.blueprint import Blueprint
from weightwire_torch.manifest import refuse_other
from weightwire_torch.ranks import rank_group
from weightwire_torch.sharding import Sharding, Unsharded
from weightwire_torch.structure import structure

_AGAIN = "if the model was changed on purpose, close the session and call weightwire.connect() again, on every rank"


@dataclass(frozen=True, slots=True)
class _Reading:
    """What was made of a model, and the structure it had then."""

    structure: list[object]
    blueprint: Blueprint
    manifest: Manifest


class ModuleSource:
    """Implements :class:`~weightwire.planes.WeightSource`, ``Releases`` and ``GathersTogether``, over a module.

    The model may change between two rounds: what is sent is what it is made of when a round begins, adapters that are
    active then merged. Names and shapes must stay, since the engines hold them.
    """

    def __init__(
        self, model: torch.nn.Module, options: Options, *, dtype: str = "", sharding: Sharding | None = None
    ) -> None:
        """Look at nothing yet.

        Args:
            model: the module, in whatever wrappers; adapters in it are merged into what is sent, not into the model.
            options: the session's; none concerns a module.
            dtype: send floating tensors in this dtype; empty for their own.
            sharding: how the tensors are made whole; None where they are.
        """
        del options
        self.ranks: RankGroup = rank_group()
        self._model = model
        self._dtype = dtype
        self._sharding = sharding or Unsharded()
        self._first: Manifest | None = None
        self._last: _Reading | None = None

    @property
    def lasting(self) -> bool:
        """Whether gathered tensors last for the round: nobody trains while ``push()`` has the caller's thread."""
        return isinstance(self._sharding, Unsharded)

    @property
    def together(self) -> str:
        """A digest of what each gather makes whole in a collective; empty where there is none."""
        return (self._last or self._read()).blueprint.digest if self._sharding.collective else ""

    def manifest(self) -> Manifest:
        """Describe the tensors of now; what is gathered after that is what was described.

        Raises:
            ManifestError: a tensor can't be sent, or names or shapes are not what they were at first; says which.
        """
        return self._read().manifest

    def gather(self, group: int) -> Sequence[torch.Tensor]:
        """Make one group whole, in lock-step with the other ranks.

        What a slot holds is looked up anew: optimizers and ``load_state_dict(assign=True)`` may have put others there.
        """
        chosen = (self._last or self._read()).blueprint.groups[group]
        self.release()
        self._sharding.settle(self._model)
        tensors = [slot.tensor for slot in chosen.slots]
        return chosen.build(list(self._sharding.whole(tensors)))

    def release(self) -> None:
        """Let go of what was gathered last, where the framework keeps it."""
        self._sharding.release()

    def _read(self) -> _Reading:
        """What the model comes to now; looked for anew only where it is not made of what it was."""
        self._sharding.settle(self._model)
        now = structure(self._model, self._sharding.traits)
        if self._last is None or self._last.structure != now:
            self._last = self._reading(now)
        return self._last

    def _reading(self, now: list[object]) -> _Reading:
        try:
            blueprint = Blueprint.of(self._model, self._sharding.form)
            manifest = blueprint.manifest(dtype=self._dtype)
            refuse_other(manifest, self._first or manifest)
        except ManifestError as error:
            if self._first is not None:
                error.hint = "; ".join(filter(None, (error.hint, _AGAIN)))
            raise
        self._first = self._first or manifest
        return _Reading(now, blueprint, manifest)
