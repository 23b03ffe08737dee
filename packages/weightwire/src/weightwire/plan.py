"""How a manifest is cut for the wire: into packs (several tensors a collective) and windows (update calls)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from weightwire.errors import ConfigurationError
from weightwire.fused import module_of
from weightwire.messages import EngineInfo, EngineKind, Manifest, PackGeometry, TensorMeta, Window, item_bytes
from weightwire.options import Options
from weightwire.packing import pack_offsets, whole_sizes

STOCK_BUCKET = 1024 * 1024 * 1024
"""vLLM's own default, and the fastest size tried over NVLink, for 1.2 GB and for 16 GB (0.26.0, two H200s)."""

LEAST_SHARE = 2
"""How much smaller than the default, at most, packs are made so that the receiver may load two at once."""

OUR_BUCKET = 32 * 1024 * 1024
"""The fastest size tried over gloo on loopback; a larger one leaves the receiver idle at first, the sender at last."""

OUR_BUCKET_ON_GPUS = 256 * 1024 * 1024
"""Large enough for the wire (NVLink: 93 % of what 1 GiB gives), and small enough that packing the first and unpacking
the last, which nothing hides, take a fifth of a millisecond each."""


def geometry(manifest: Manifest, infos: Sequence[EngineInfo], options: Options) -> PackGeometry:
    """Choose how tensors are put together, so that every engine can take them apart.

    Args:
        manifest: what will travel.
        infos: the engines; all of them receive the same packs.
        options: ``packed`` (None: packs where they are safe), ``bucket_bytes`` and ``num_buckets``.

    Returns:
        The geometry for every engine and for the sender.

    Raises:
        ConfigurationError: packs were asked for, and an engine could not take them apart.
    """
    chosen = PackGeometry(
        packed=options.packed is not False,
        buffer_bytes=options.bucket_bytes or _bucket_bytes(infos),
        num_buffers=options.num_buckets,
    )
    if not chosen.packed:
        return chosen
    chosen = _without_a_race(manifest, chosen, infos, fixed=bool(options.bucket_bytes))
    reason = _unsafe(manifest, chosen, infos)
    if reason and options.packed:
        raise ConfigurationError(
            f"The option packed=True can't be kept: {reason}",
            hint="leave `packed` unset, and tensors are sent one by one where packs are not safe",
        )
    return msgspec.structs.replace(chosen, packed=not reason)


def _without_a_race(
    manifest: Manifest, wanted: PackGeometry, infos: Sequence[EngineInfo], *, fixed: bool
) -> PackGeometry:
    """As many packs at once as every engine loads without a race: as many as wanted, where no module lies in two packs.

    Args:
        manifest: what will travel.
        wanted: as the options have it.
        infos: the engines.
        fixed: no other size of packs may be chosen.
    """
    safe = min(info.limits.num_buffers for info in infos)
    if wanted.num_buffers <= safe:
        return wanted
    least = wanted.buffer_bytes // (1 if fixed else LEAST_SHARE)
    one_window = not any(info.limits.whole_modules for info in infos)
    for size in whole_sizes(manifest.tensors, most=wanted.buffer_bytes, least=least) if one_window else ():
        whole = msgspec.structs.replace(wanted, buffer_bytes=size)
        if not _unsafe(manifest, whole, infos):
            return whole
    return msgspec.structs.replace(wanted, num_buffers=safe)


def _bucket_bytes(infos: Sequence[EngineInfo]) -> int:
    if any(info.kind is EngineKind.STOCK for info in infos):
        return STOCK_BUCKET
    return OUR_BUCKET_ON_GPUS if all(info.device == "cuda" for info in infos) else OUR_BUCKET


def windows(manifest: Manifest, geometry: PackGeometry, *, infos: Sequence[EngineInfo]) -> tuple[Window, ...]:
    """Cut the manifest into update calls.

    One call for everything, unless an engine asks for whole modules in each (``limits.whole_modules``): then as few
    as hold at most ``buffer_bytes`` each, cut where a group ends and no module is open. A stretch that can't be cut
    is one window, whatever its size.

    Args:
        manifest: what will travel.
        geometry: how tensors are put together.
        infos: the engines; all of them get the same windows.

    Returns:
        The windows, in order, covering the manifest; none for an empty one.
    """
    if not manifest.tensors:
        return ()
    if not any(info.limits.whole_modules for info in infos):
        return (Window(0, 0, len(manifest.tensors)),)
    cuts = _filled(manifest, _legal_cuts(manifest), geometry.buffer_bytes)
    return tuple(Window(index, start, stop) for index, (start, stop) in enumerate(cuts))


def _unsafe(manifest: Manifest, geometry: PackGeometry, infos: Sequence[EngineInfo]) -> str:
    """Why an engine could not take these packs apart, as a sentence; empty when all can."""
    aligned = _misaligned(manifest, geometry, infos)
    scalar = next((t.name for t in manifest.tensors if not t.shape), "")
    for info in infos:
        if not info.limits.packed:
            return f"{info.url} (version {info.version}) takes no packs."
        if scalar and not info.limits.packed_scalars:
            return f"{info.url} (version {info.version}) takes no 0-dimensional tensor in a pack, and {scalar} is one."
        if aligned and info.limits.aligned_packs:
            return f"{info.url} (version {info.version}) takes only aligned tensors in a pack, and {aligned}."
    return ""


def _misaligned(manifest: Manifest, geometry: PackGeometry, infos: Sequence[EngineInfo]) -> str:
    for window in windows(manifest, geometry, infos=infos):
        tensors = manifest.tensors[window.start : window.stop]
        offsets = pack_offsets((t.nbytes for t in tensors), geometry.buffer_bytes)
        for tensor, (_, offset) in zip(tensors, offsets, strict=True):
            if offset % item_bytes(tensor.dtype):
                return f"{tensor.name} ({tensor.dtype}) would start at byte {offset}"
    return ""


def _legal_cuts(manifest: Manifest) -> Iterator[int]:
    """Yield the ends of groups where every module that was begun is complete."""
    last = _last_of_module(manifest.tensors)
    end_of_group = {stop for _, stop in manifest.groups}
    open_until = 0
    for index, tensor in enumerate(manifest.tensors, start=1):
        open_until = max(open_until, last[module_of(tensor.name)])
        if index >= open_until and index in end_of_group:
            yield index


def _last_of_module(tensors: Sequence[TensorMeta]) -> dict[str, int]:
    return {module_of(tensor.name): index for index, tensor in enumerate(tensors, start=1)}


def _filled(manifest: Manifest, cuts: Iterable[int], limit: int) -> Iterator[tuple[int, int]]:
    """Join neighbouring stretches while together they hold at most *limit* bytes."""
    start = stop = held = 0
    for cut in cuts:
        size = sum(t.nbytes for t in manifest.tensors[stop:cut])
        if held and held + size > limit:
            yield start, stop
            start, held = stop, 0
        stop, held = cut, held + size
    yield start, stop
