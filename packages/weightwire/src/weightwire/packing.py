"""vLLM's pack rule, and the sizes of packs that keep in one pack what an engine holds as one module.

A stock receiver with two buffers works on two packs at once, each in a CUDA stream of its own. Up to vLLM 0.32 it reads
the beginning of a module that lies in two packs from the first one's buffer in the second one's stream, and nothing
makes the first stream wait before it gives that buffer to somebody else (``packed_nccl_broadcast_consumer``; mended in
0.33, whose ``receive_and_load`` puts events between the streams). Where every module lies in one pack, a buffer is
allocated, filled, read and given back in one stream, and two of them are as safe as one. This room can go when 0.33 is
the oldest release that is supported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from weightwire.fused import module_of, part_of
from weightwire.tensors import TensorMeta


def pack_offsets(sizes: Iterable[int], buffer_bytes: int) -> Iterator[tuple[int, int]]:
    """Say where each tensor of a window comes to lie.

    The rule is vLLM's, the same from 0.17 to 0.33: tensors follow each other without padding, and a pack is closed
    by the tensor that takes it over *buffer_bytes*. Packs start afresh with each window.

    Args:
        sizes: of the tensors, in bytes, in order.
        buffer_bytes: the size that closes a pack.

    Yields:
        The number of its pack, and its offset in it in bytes.
    """
    pack, filled = 0, 0
    for size in sizes:
        yield pack, filled
        filled += size
        if filled > buffer_bytes:
            pack, filled = pack + 1, 0


def whole_sizes(tensors: Sequence[TensorMeta], *, most: int, least: int) -> Iterator[int]:
    """Find sizes with which no module lies in two packs.

    In a stack of like layers, the length of some layers is such a size if the first pack ends well: every later one
    ends where that one did, some layers on. So distances between places where packs may end are tried.

    Args:
        tensors: of one window.
        most: the largest size, in bytes; tried first.
        least: the smallest.

    Yields:
        The sizes, the largest first.
    """
    ends = _ends(tensors)
    sizes = [tensor.nbytes for tensor in tensors]
    for size in _candidates(sizes, ends, most=most, least=least):
        if _fits(sizes, ends, size):
            yield size


def _ends(tensors: Sequence[TensorMeta]) -> frozenset[int]:
    """How many tensors a pack may end behind: where no module is open, nor a part of a block.

    A module that the table of fused ones does not know is cut neither, since its tensors stand in one part.
    """
    last: dict[str, int] = {}
    for index, tensor in enumerate(tensors, start=1):
        last[module_of(tensor.name)] = last[part_of(tensor.name)] = index
    open_until = accumulate((max(last[module_of(t.name)], last[part_of(t.name)]) for t in tensors), max)
    return frozenset(index for index, until in enumerate(open_until, start=1) if index >= until)


def _candidates(sizes: Sequence[int], ends: frozenset[int], *, most: int, least: int) -> Iterator[int]:
    """*most*, then a byte less than each distance from the beginning, and from an end in the middle, to an end."""
    places = [0, *accumulate(sizes)]
    at = sorted(places[end] for end in ends)
    origins = (0, *at[len(at) // 2 :][:1])
    distances = {place - origin - 1 for origin in origins for place in at}
    yield most
    yield from sorted((size for size in distances if least <= size < most), reverse=True)


def _fits(sizes: Sequence[int], ends: frozenset[int], buffer_bytes: int) -> bool:
    packs = [pack for pack, _ in pack_offsets(sizes, buffer_bytes)]
    return all(index in ends for index in range(1, len(packs)) if packs[index] != packs[index - 1])
