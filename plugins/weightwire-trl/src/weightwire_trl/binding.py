"""What a transfer takes over in a trainer of TRL's that it is bound to, on every rank.

TRL calls a transfer on rank 0 alone; meanwhile the other ranks run ``_streaming_iter()`` by themselves, so that they
are in the collectives that gather each parameter. In a bound trainer they run their part of the session there instead:
so they gather layers instead of parameters, also the frozen ones, and hear how a round came out. The method is private
to TRL, and the same in 1.9.0 to 1.16.0, in both of its asynchronous trainers.

TRL also merges adapters into the model before a push and takes them out again, which changes bits in a tenth of the
elements of every adapted weight, for good. What the session sends is merged beside the model, so in a bound trainer
the model's own two methods do nothing while it trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
import transformers
from weightwire.errors import CompatibilityError, ConfigurationError
from weightwire_torch.claims import is_a

from weightwire_trl.trainers import Trainer

_STREAM = "_streaming_iter"
_MERGING = ("merge_adapter", "unmerge_adapter")


class AsyncTrainer(Trainer, Protocol):
    """The part of TRL's asynchronous trainers that is used here, beyond Transformers'.

    Attributes:
        weight_transfer: what was passed, on rank 0; None on the others.
    """

    weight_transfer: object


class Binding(transformers.TrainerCallback):  # type: ignore[misc] # Transformers is not typed here
    """One trainer on one rank, taken over for as long as it trains."""

    def __init__(
        self,
        trainer: AsyncTrainer,
        *,
        join: Callable[[], object],
        follow: Callable[[], object],
        leave: Callable[[], object],
    ) -> None:
        """Look at the trainer; :meth:`take_over` changes it.

        Args:
            trainer: the trainer.
            join: called on every rank when a training begins.
            follow: a push's part on a rank that does not send.
            leave: called on every rank when a training has ended.

        Raises:
            CompatibilityError: it is none of TRL's asynchronous trainers, as they are known.
        """
        if not callable(getattr(trainer, _STREAM, None)) or not hasattr(trainer, "weight_transfer"):
            raise CompatibilityError(
                f"A {type(trainer).__name__} has no `weight_transfer` and `{_STREAM}`, as TRL's AsyncGRPOTrainer and "
                "AsyncDistillationTrainer have in 1.9.0 to 1.16.0.",
                hint="use weightwire_trl.WeightTransferCallback, which works with every trainer of Transformers",
            )
        self.trainer = trainer
        self._join = join
        self._follow = follow
        self._leave = leave

    def check(self, transfer: object) -> None:
        """Refuse a trainer that was not given *transfer*; only rank 0 can tell.

        Raises:
            ConfigurationError: it uses another.
        """
        if self.trainer.is_world_process_zero() and self.trainer.weight_transfer is not transfer:
            raise ConfigurationError(
                f"The {type(self.trainer).__name__} was not given this transfer.",
                hint="pass it to the trainer as well: weight_transfer=transfer",
            )

    def take_over(self) -> None:
        """Take the trainer over, for as long as it trains."""
        self.trainer.add_callback(self)
        called = self.trainer.callback_handler.callbacks
        called.insert(0, called.pop())  # TRL's own, at the beginning, makes the other ranks wait in a barrier
        self._take_over()

    def give_back(self) -> None:
        """Let the trainer and its model be as they were. Idempotent."""
        vars(self.trainer).pop(_STREAM, None)
        for name in _MERGING:
            vars(self.trainer.model).pop(name, None)

    def on_train_begin(self, *_: object, **__: object) -> None:
        """Take over again, for a trainer that trains more than once, and open the session.

        TRL would open it on rank 0 alone; where that fails the others would wait in a barrier, and hear of a rank that
        is gone instead of what is wrong.

        Raises:
            WeightwireError: what is wrong; nothing was changed in any engine.
        """
        self._take_over()
        self._join()

    def on_train_end(self, *_: object, **__: object) -> None:
        """Leave the engines on every rank: TRL tells rank 0 alone."""
        self._leave()

    def _take_over(self) -> None:
        if not self.trainer.is_world_process_zero():
            vars(self.trainer)[_STREAM] = self._followed
        if is_a(self.trainer.model, "peft.peft_model:PeftModel"):
            vars(self.trainer.model).update(dict.fromkeys(_MERGING, _stay_apart))

    def _followed(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Instead of TRL's iterator: all that this rank has to do is done when it is asked for."""
        self._follow()
        return iter(())


def _stay_apart(*_: object, **__: object) -> None:
    """Neither merge nor unmerge. A plain function: the model it is put into can be copied and pickled."""
