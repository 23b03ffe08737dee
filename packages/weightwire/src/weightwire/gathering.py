"""Gathering without sending: what a rank does when its tensors are not wanted, but its peers wait in collectives."""

from __future__ import annotations

from collections.abc import Iterable

from weightwire.messages import Manifest
from weightwire.planes import WeightSource


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


def groups_from(manifest: Manifest, start: int) -> range:
    """The groups that begin at tensor *start* or later."""
    first = next((i for i, (begin, _) in enumerate(manifest.groups) if begin >= start), len(manifest.groups))
    return range(first, len(manifest.groups))
