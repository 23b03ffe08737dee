"""The weight source for TRL's own stream of tensors, where nobody said which model it comes from."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import torch
from weightwire.deadlines import Deadline
from weightwire.errors import ManifestError
from weightwire.messages import Manifest, TensorMeta
from weightwire.planes import RankGroup, SingleRank
from weightwire_torch.manifest import manifest_of

Named = tuple[str, torch.Tensor]

_BIND = "call transfer.bind(trainer) on every rank, before training"
_PACKED_DIMENSIONS = 3


class StreamSource:
    """Implements :class:`~weightwire.planes.WeightSource` over iterators, one a round.

    What will travel has to be known before the first byte of a round, and an iterator tells it as it goes. So the
    first one is read to its end, into host memory, and describes all that follow (docs/adr/0007).
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self.ranks: RankGroup = SingleRank()
        self._manifest: Manifest | None = None
        self._left: Iterator[Named] = iter(())

    def begin(self, iterator: Iterator[Named]) -> None:
        """Take the next round's tensors from *iterator*; the first one is read to its end.

        Raises:
            ManifestError: what it yields can't be sent.
        """
        if self._manifest is not None:
            self._left = iterator
            return
        read = deque((name, tensor.detach().cpu()) for name, tensor in iterator)
        for name, tensor in read:
            _refuse_without_model(name, tensor)
        self._manifest = manifest_of(read)
        self._left = _consumed(read)

    def manifest(self) -> Manifest:
        """What the first iterator yielded.

        Raises:
            ManifestError: there was none yet.
        """
        if self._manifest is None:
            raise ManifestError("Nothing is known of the stream of weights before its first round.", hint=_BIND)
        return self._manifest

    def gather(self, group: int) -> Sequence[torch.Tensor]:
        """The next tensors of the iterator. All of the group are taken, also when one of them is not what is due.

        Raises:
            ManifestError: the stream is not like the first; names the tensor.
        """
        start, stop = self.manifest().groups[group]
        due = self.manifest().tensors[start:stop]
        taken = [next(self._left, None) for _ in due]
        return [_as_due(meta, found) for meta, found in zip(due, taken, strict=True)]

    def drain(self, deadline: Deadline) -> None:
        """Take what is left: other ranks run the same iterator, and wait in its collectives. No longer than allowed."""
        for _ in self._left:
            if deadline.expired:
                return


def _consumed(read: deque[Named]) -> Iterator[Named]:
    while read:
        yield read.popleft()


def _as_due(meta: TensorMeta, found: Named | None) -> torch.Tensor:
    if found is None or found[0] != meta.name:
        instead = "and the stream has ended" if found is None else f"and {found[0]!r} came"
        raise ManifestError(
            f"The stream of weights is not what it was in the first round: {meta.name!r} is due, {instead}.",
            hint=f"freeze and unfreeze parameters only between trainings, or {_BIND}",
        )
    return found[1]


def _refuse_without_model(name: str, tensor: torch.Tensor) -> None:
    if tensor.numel() == 0:
        raise ManifestError(
            f"The tensor {name!r} is empty: a shard of DeepSpeed ZeRO-3, which TRL's stream does not gather.",
            hint=f"pip install weightwire-deepspeed, and {_BIND}",
        )
    if tensor.dim() == _PACKED_DIMENSIONS and ".experts." in name:
        raise ManifestError(
            f"The tensor {name!r} holds the experts of a layer in one, and checkpoints and servers name them one by "
            "one; only the model can say how.",
            hint=_BIND,
        )
