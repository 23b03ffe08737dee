"""What pushes did, in the records of a trainer."""

from __future__ import annotations

import transformers
from weightwire.messages import Receipt

from weightwire_trl.trainers import Trainer


def log_receipt(trainer: Trainer, receipt: Receipt) -> None:
    """Give what a push did to the trainer's reporters, on rank 0.

    Through ``log`` of the base class: TRL's own empties what it has collected since the last record into whatever is
    logged, and the next record of the loss would lack it (``_metrics``, 1.9.0 to 1.16.0).
    """
    if trainer.is_world_process_zero():
        due = trainer.control.should_log
        transformers.Trainer.log(trainer, receipt.metrics())
        trainer.control.should_log = due  # a record is taken for the one that is due, and that one left out
