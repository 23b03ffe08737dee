"""The weights of a ``torch.nn.Module``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from weightwire.messages import Manifest
from weightwire.options import Options
from weightwire.planes import RankGroup

from weightwire_torch.blueprint import Blueprint, Group
from weightwire_torch.ranks import rank_group
from weightwire_torch.sharding import Sharding, Unsharded


class ModuleSource:
    """Implements :class:`~weightwire.planes.WeightSource`, and ``Releases``, over a module."""

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
        self._blueprint: Blueprint | None = None
        self._manifest: Manifest | None = None

    @property
    def lasting(self) -> bool:
        """Whether gathered tensors last for the round: nobody trains while ``push()`` has the caller's thread."""
        return isinstance(self._sharding, Unsharded)

    def manifest(self) -> Manifest:
        """Describe the tensors. Made once: names and shapes of a model in training do not change.

        Raises:
            ManifestError: a tensor can't be sent; names it.
        """
        if self._manifest is None:
            self._sharding.settle(self._model)
            self._blueprint = Blueprint.of(self._model, self._sharding.form)
            self._manifest = self._blueprint.manifest(dtype=self._dtype)
        return self._manifest

    def gather(self, group: int) -> Sequence[torch.Tensor]:
        """Make one group whole, in lock-step with the other ranks.

        What a slot holds is looked up anew: optimizers and ``load_state_dict(assign=True)`` may have put others there.
        """
        chosen = self._groups()[group]
        self.release()
        self._sharding.settle(self._model)
        tensors = [slot.tensor for slot in chosen.slots]
        return chosen.build(list(self._sharding.whole(tensors)))

    def release(self) -> None:
        """Let go of what was gathered last, where the framework keeps it."""
        self._sharding.release()

    def _groups(self) -> tuple[Group, ...]:
        self.manifest()
        return self._blueprint.groups if self._blueprint is not None else ()
