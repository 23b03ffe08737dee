"""The ``weight_transfer=`` of TRL's AsyncGRPOTrainer and AsyncDistillationTrainer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Literal, Self

import torch
import weightwire
from weightwire.deadlines import Deadline
from weightwire.errors import ManifestError, StateError
from weightwire.messages import Receipt

from weightwire_trl.binding import AsyncTrainer, Binding
from weightwire_trl.pushing import Given, Pushes, Target
from weightwire_trl.reporting import log_receipt
from weightwire_trl.stream import StreamSource
from weightwire_trl.trainers import version_of

_FROZEN = "TRL's stream leaves frozen parameters out; transfer.bind(trainer) on every rank sends them"


class WeightTransfer:
    """Satisfies TRL's ``WeightTransferProtocol`` (1.9.0 and later).

    ::

        transfer = WeightTransfer("http://127.0.0.1:8000")
        trainer = AsyncGRPOTrainer(..., weight_transfer=transfer)
        transfer.bind(trainer)

    Bound, it is a session over the trainer's model, on every rank; versions are the trainer's global steps, and what
    each push did goes to the trainer's reporters. Unbound, all it knows is the stream that TRL hands to rank 0;
    versions are counted from 1.
    """

    def __init__(
        self,
        target: Target,
        options: Given = None,
        *,
        pause: Literal["keep", "wait", "abort"] = "keep",
        cache: Literal["reset", "keep"] = "reset",
    ) -> None:
        """Connect nothing yet.

        Args:
            target: the base URL of an engine, or of several.
            options: as for :func:`weightwire.connect`.
            pause: what happens to requests in flight (see :meth:`weightwire.Session.push`).
            cache: what happens to the engines' caches.

        Raises:
            ConfigurationError: an option is wrong.
        """
        self._pushes = Pushes(target, options, pause=pause, cache=cache)
        self._binding: Binding | None = None
        self._stream = StreamSource()
        self._rounds = itertools.count(1)

    @property
    def receipt(self) -> Receipt | None:
        """What the last push did; None before the first."""
        return self._pushes.receipt

    def bind(self, trainer: AsyncTrainer) -> Self:
        """Take the weights from the trainer's model. Call it on every rank, between making the trainer and training.

        Returns:
            The transfer.

        Raises:
            CompatibilityError: TRL's trainer is not as it is known.
            ConfigurationError: the trainer was not given this transfer.
        """
        binding = Binding(trainer, join=self._open_bound, follow=self._push_bound, leave=self.destroy)
        binding.check(self)
        binding.take_over()
        self._binding = binding
        return self

    def init_weight_transfer(self) -> None:
        """Find out whether the engines can take weights; bound, open the channel too. TRL calls it once, on rank 0.

        Raises:
            WeightwireError: what is wrong; nothing was changed in any engine.
        """
        if self._binding is not None:
            self._open_bound()
            return
        for url in [self._pushes.target] if isinstance(self._pushes.target, str) else self._pushes.target:
            weightwire.inspect(url, self._pushes.options)

    def pause(self) -> None:
        """Nothing: a push pauses the engines itself, no earlier than it must."""

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Push. It returns or raises within the option ``timeout``, unless a collective of the trainer's own hangs.

        Args:
            iterator: TRL's stream; a bound transfer does not touch it.

        Raises:
            WeightwireError: as :meth:`weightwire.Session.push` does. TRL lets it end the training.
        """
        if self._binding is not None:
            self._push_bound()
        else:
            self._push_stream(iterator)

    def resume(self) -> None:
        """Nothing more: a push resumes the engines that are whole.

        Raises:
            StateError: an engine is torn; it stays paused.
        """
        torn = self._pushes.torn()
        if torn:
            raise StateError(
                f"These engines hold a mix of old and new weights, and stay paused: {', '.join(torn)}.",
                hint="push again, which mends them, or restart them",
            )

    def destroy(self) -> None:
        """Leave the engines, and let the trainer be as it was. Idempotent, never raises; TRL calls it at the end."""
        if self._binding is not None:
            self._binding.give_back()
        self._pushes.close()

    def _open_bound(self) -> None:
        if self._binding is not None:
            self._pushes.open(self._binding.trainer.model_wrapped)

    def _push_bound(self) -> None:
        if self._binding is not None:
            trainer = self._binding.trainer
            log_receipt(trainer, self._pushes.push(trainer.model_wrapped, version_of(trainer)))

    def _push_stream(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        deadline = Deadline.after(self._pushes.options.timeout)
        try:
            self._stream.begin(iterator)
            self._pushes.push(self._stream, str(next(self._rounds)))
        except ManifestError as error:
            error.hint = "; ".join(filter(None, (error.hint, _FROZEN)))
            raise
        finally:
            self._stream.drain(deadline)
