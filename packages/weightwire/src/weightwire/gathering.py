"""Gathering in step: each group once and in order, on every rank, also when its tensors are not wanted any more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from weightwire.deadlines import Deadline
from weightwire.errors import PluginError
from weightwire.messages import Window
from weightwire.planes import GathersTogether, LastingTensors, RankGroup, Releases, WeightSource
from weightwire.tensors import Manifest

log = logging.getLogger(__name__)

Gate = Callable[[Exception | None, Deadline], None]
"""Passed between two windows, with what went wrong on this rank so far; raises on every rank if one can't go on."""


def open_gate(error: Exception | None, deadline: Deadline) -> None:
    """Let pass: the gate of a trainer that is one process."""
    del error, deadline


def groups_of(manifest: Manifest, window: Window) -> range:
    """The groups that begin in *window*; it holds whole ones."""
    begins = [index for index, (start, _) in enumerate(manifest.groups) if window.start <= start < window.stop]
    return range(begins[0], begins[-1] + 1) if begins else range(0)


def gather_and_drop(source: WeightSource, groups: Iterable[int]) -> Exception | None:
    """Gather each group once and drop it; go on after an error, since the other ranks do.

    Returns:
        The first error, None where there was none.
    """
    first: Exception | None = None
    for group in groups:
        try:
            source.gather(group)
        except Exception as error:  # noqa: BLE001 - kept; the caller raises it once every group was gathered
            first = first or error
    return first


def agreed_digest(source: WeightSource, manifest: Manifest) -> str:
    """What must be the same on every rank before a round begins.

    Args:
        source: where the tensors come from.
        manifest: what it last said of itself.
    """
    return f"{manifest.digest} {source.together if isinstance(source, GathersTogether) else ''}"


class InStep:
    """A weight source that keeps count for one round, so that what was left out can be made up for.

    Other ranks wait in the collectives of a group that this rank does not gather, whatever its reason.
    """

    def __init__(self, source: WeightSource, manifest: Manifest) -> None:
        """Gather nothing yet; the round's *manifest* is what will be."""
        self._source = source
        self._manifest = manifest
        self._next = 0

    @property
    def ranks(self) -> RankGroup:
        """The source's."""
        return self._source.ranks

    @property
    def lasting(self) -> bool:
        """The source's, where it has one."""
        return isinstance(self._source, LastingTensors) and self._source.lasting

    def manifest(self) -> Manifest:
        """The round's."""
        return self._manifest

    def gather(self, group: int) -> Sequence[object]:
        """Gather the next group.

        Raises:
            PluginError: it is another one's turn; a data plane is at fault.
        """
        if group != self._next:
            raise PluginError(f"Group {group} was asked for, and it is the turn of group {self._next}.")
        self._next += 1
        return self._source.gather(group)

    def catch_up(self, window: Window) -> None:
        """Gather and drop what is left of *window*."""
        gather_and_drop(self, range(self._next, groups_of(self._manifest, window).stop))
        self.release()

    def release(self) -> None:
        """Let go of what was gathered last, where the source holds on to it; never raises."""
        if isinstance(self._source, Releases):
            try:
                self._source.release()
            except Exception:  # a round has its own errors, and its outcome is settled by now
                log.exception("The weight source could not let go of what it gathered last.")
