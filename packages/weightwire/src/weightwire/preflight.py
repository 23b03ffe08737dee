"""The checks before anything irreversible: would this push leave every engine whole?

On a stock server a wrong name is 200 and the old weights, half a fused layer is 200 and uninitialised memory, and a
malformed update kills the engine's process. The client is the only guard, and this is it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from weightwire import deviations
from weightwire.errors import CompatibilityError, ManifestError
from weightwire.expected import Expected
from weightwire.fused import block_of, gaps, module_of
from weightwire.messages import ITEM_BYTES, EngineInfo, Manifest
from weightwire.options import Options
from weightwire.wording import some


def check(
    manifest: Manifest,
    infos: Sequence[EngineInfo],
    *,
    expected: Expected | None,
    options: Options,
    partial: bool = False,
) -> None:
    """Refuse a push that would not leave every engine whole. Changes nothing, calls nobody.

    Args:
        manifest: what would be sent.
        infos: the engines.
        expected: what they expect; None where nobody knows, and only the manifest itself can be judged.
        options: ``dtype`` says whether another floating-point dtype is fine or refused.
        partial: the push may leave modules out (frozen parameters), each of them as a whole. Otherwise every name
            that is expected must be sent.

    Raises:
        ManifestError: the manifest is malformed, or is not what the engines expect.
        CompatibilityError: an engine can't take a tensor of this dtype.
    """
    _check_form(manifest)
    _check_tensors(manifest)
    for info in infos:
        _check_taken(manifest, info)
    _check_adjacent(manifest)
    if expected is None:
        _check_modules(manifest)
    else:
        deviations.check_known(manifest, expected)
        deviations.check_shapes(manifest, expected)
        deviations.check_dtypes(manifest, expected, infos=infos, refuse=options.dtype == "refuse")
        deviations.check_modules(manifest, expected, infos=infos)
    if not partial:
        deviations.check_complete(manifest, expected, infos=infos)


def _check_form(manifest: Manifest) -> None:
    if not manifest.tensors:
        raise ManifestError(
            "There is nothing to send: the manifest is empty.",
            hint="check that the weight source sees the model's parameters (they may be on another rank, or filtered)",
        )
    broken = [repr(name) for name in manifest.names if not _is_text(name)]
    if broken:
        raise ManifestError(
            f"{len(broken)} name(s) hold half a character (a surrogate), which no request can carry: {some(broken)}.",
            hint="rename these parameters",
        )
    twice = [name for name, count in Counter(manifest.names).items() if count > 1]
    if twice:
        raise ManifestError(
            f"{len(twice)} name(s) stand in the manifest more than once: {some(twice)}.",
            hint="make the weight source yield each tensor once, under its checkpoint name",
        )
    covered = [index for start, stop in manifest.groups for index in range(start, stop)]
    if covered != list(range(len(manifest.tensors))):
        raise ManifestError(
            f"The groups of the manifest don't cover its {len(manifest.tensors)} tensor(s) in order, each once.",
            hint="this is a fault of the weight source: each group starts where the one before it stops",
        )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_tensors(manifest: Manifest) -> None:
    unknown = [f"{t.name} ({t.dtype})" for t in manifest.tensors if t.dtype not in ITEM_BYTES]
    if unknown:
        raise ManifestError(
            f"{len(unknown)} tensor(s) have a dtype that can't be sent: {some(unknown)}; known are "
            f"{', '.join(sorted(ITEM_BYTES))}.",
            hint="cast or dequantise them in the weight source",
        )
    empty = [t.name for t in manifest.tensors if t.numel < 1]
    if empty:
        raise ManifestError(
            f"{len(empty)} tensor(s) have no elements: {some(empty)}.",
            hint="they look like placeholders of a sharded model (DeepSpeed ZeRO-3, FSDP); use the adapter for it, "
            "which gathers the whole tensors",
        )


def _check_taken(manifest: Manifest, info: EngineInfo) -> None:
    taken = info.limits.dtypes or tuple(ITEM_BYTES)
    refused = [f"{t.name} ({t.dtype})" for t in manifest.tensors if t.dtype not in taken]
    if refused:
        raise CompatibilityError(
            f"{info.engine} {info.version} can't receive {len(refused)} tensor(s) because of their dtype: "
            f"{some(refused)}; it takes {', '.join(sorted(taken))}.",
            hint="cast them in the weight source, or leave them out if they are no weights",
        ).at(engine=info.url)


def _check_adjacent(manifest: Manifest) -> None:
    """Refuse parts of a module that come layers apart: the engine holds them back, in memory it did not plan for."""
    runs: Counter[str] = Counter()
    for block, run in groupby(manifest.names, key=block_of):
        # Outside numbered blocks a module's own tensors may stand on both sides of those of its children.
        runs.update({module_of(name) for name in run if block})
    scattered = [module for module, count in runs.items() if count > 1]
    if scattered:
        raise ManifestError(
            f"The parts of {len(scattered)} module(s) are scattered over the manifest: {some(scattered)}.",
            hint="let the weight source yield all tensors of a layer together, then those of the next",
        )


def _check_modules(manifest: Manifest) -> None:
    """Refuse half of a fused module, going by what models in general look like."""
    missing = gaps(manifest.names)
    if missing:
        raise deviations.half_sent(
            missing,
            hint="send all their parts; if the model really has no such tensor, set the option `expected` to the "
            "checkpoint the engine was started from, and its names count",
        )
