"""A callback that pushes a trainer's weights, for every trainer of Transformers and TRL."""

from __future__ import annotations

from typing import Literal, Protocol

import transformers
from weightwire import addresses
from weightwire.errors import ConfigurationError
from weightwire.messages import Receipt

from weightwire_trl.pushing import Given, Pushes, Target
from weightwire_trl.reporting import log_receipt
from weightwire_trl.trainers import Control, State, Trainer, version_of


class Arguments(Protocol):
    """The part of ``transformers.TrainingArguments`` that is used here."""

    load_best_model_at_end: bool


class WeightTransferCallback(transformers.TrainerCallback):  # type: ignore[misc] # Transformers is not typed here
    """Pushes once at the start of training, then every so many steps, before an evaluation, and at the end.

    ::

        trainer = SFTTrainer(...)
        trainer.add_callback(WeightTransferCallback(trainer, "http://127.0.0.1:8000", every=10))

    It runs on every rank, whatever the trainer shards the model with. Versions are global steps. What each push did
    goes to the trainer's reporters. A push that fails ends the training.
    """

    def __init__(
        self,
        trainer: Trainer,
        target: Target,
        options: Given = None,
        *,
        every: int = 1,
        pause: Literal["keep", "wait", "abort"] = "keep",
        cache: Literal["reset", "keep"] = "reset",
    ) -> None:
        """Connect nothing yet.

        Args:
            trainer: whose weights are pushed.
            target: the base URL of an engine, or of several.
            options: as for :func:`weightwire.connect`.
            every: push after each step whose number is a multiple of it.
            pause: what happens to requests in flight (see :meth:`weightwire.Session.push`).
            cache: what happens to the engines' caches.

        Raises:
            ConfigurationError: an option is wrong, or *every* is no whole number from 1.
        """
        self._trainer = trainer
        self._pushes = Pushes(target, options, pause=pause, cache=cache)
        self._every = _steps(every)
        self._pushed = ""

    @property
    def receipt(self) -> Receipt | None:
        """What the last push did; None before the first."""
        return self._pushes.receipt

    def on_train_begin(self, _args: Arguments, state: State, *_: object, **__: object) -> None:
        """Push, before the first rollout and the first evaluation.

        Raises:
            ConfigurationError: the callback was made for another trainer, and would push that one's weights; or an
                engine would be pushed to twice.
        """
        if state is not self._trainer.state:
            raise ConfigurationError(
                "The callback was added to another trainer than the one that it was made for.",
                hint="trainer.add_callback(WeightTransferCallback(trainer, url)), with the same trainer twice",
            )
        self._refuse_twice()
        self._push()

    def on_step_end(self, _args: Arguments, state: State, control: Control, **_: object) -> None:
        """Push, if it is time, or if an evaluation follows: the trainer's own callback, which comes first, says so."""
        if state.global_step % self._every == 0 or control.should_evaluate:
            self._push()

    def on_epoch_end(self, _args: Arguments, _state: State, control: Control, **_: object) -> None:
        """Push before an evaluation."""
        if control.should_evaluate:
            self._push_news()

    def on_train_end(self, args: Arguments, *_: object, **__: object) -> None:
        """Push what is not there yet (the best checkpoint may have been loaded just now), and leave the engines."""
        if args.load_best_model_at_end:
            self._pushed = ""
        self._push_news()
        self._pushes.close()

    def _refuse_twice(self) -> None:
        added = [each for each in self._trainer.callback_handler.callbacks if isinstance(each, WeightTransferCallback)]
        try:
            addresses.all_checked([url for each in added for url in addresses.all_checked(each._pushes.target)])  # noqa: SLF001
        except ConfigurationError as error:
            raise ConfigurationError(
                f"The trainer has {len(added)} of these callbacks. {error.message}",
                hint="add one for all engines, once; trainer.remove_callback(callback) takes one out",
            ) from error

    def _push_news(self) -> None:
        if version_of(self._trainer) != self._pushed:
            self._push()

    def _push(self) -> None:
        version = version_of(self._trainer)
        try:
            receipt = self._pushes.push(self._trainer.model_wrapped, version)
        except BaseException:
            self._pushes.close()  # nobody else will: a trainer that raises calls no callback
            raise
        self._pushed = version
        log_receipt(self._trainer, receipt)


def _steps(every: object) -> int:
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ConfigurationError(
            f"every={every!r} is no number of steps to push after: a whole number from 1 is expected.",
            hint="every=1, or more",
        )
    return every
