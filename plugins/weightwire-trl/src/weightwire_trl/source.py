"""The weight source for a trainer: that of the model in it, with whatever the trainer wrapped it in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import weightwire
from weightwire import negotiate
from weightwire.options import Options
from weightwire.planes import WeightSource
from weightwire_torch.claims import is_a

if TYPE_CHECKING:
    from weightwire_trl.trainers import Trainer

CLAIM = 50


def claim_trainer(model: object) -> int:
    """Claim the trainers of Transformers and TRL. Imports neither: who has one has imported it."""
    return CLAIM if is_a(model, "transformers.trainer:Trainer") else 0


def trainer_source(trainer: Trainer, options: Options) -> WeightSource:
    """The source with the most specific claim to the trainer's model: plain, FSDP2, DeepSpeed, with adapters.

    Args:
        trainer: in training: before, its model is not sharded yet.
        options: the session's.

    Raises:
        CompatibilityError: no installed source can read the model.
    """
    return negotiate.weight_source(weightwire.plugins().registry, trainer.model_wrapped, options)
