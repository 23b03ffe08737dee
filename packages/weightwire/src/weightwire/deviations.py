"""How a manifest deviates from what the engines expect, each kind with the advice that mends it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from weightwire.errors import ManifestError
from weightwire.expected import Expected
from weightwire.fused import module_of, modules
from weightwire.messages import EngineInfo, Manifest, TensorMeta
from weightwire.output_head import is_embedding, is_head
from weightwire.wording import closest, some

_VOCABULARY = re.compile(
    r"(?:.+\.)?(?:embed_tokens|lm_head|wte|word_embeddings|tok_embeddings|embed_in|embed_out)\.weight"
)
_CASTABLE = frozenset({"float64", "float32", "float16", "bfloat16"})
_NUMBER = re.compile(r"\d+")
_GUESSED = 3


def check_known(manifest: Manifest, expected: Expected) -> None:
    """Refuse names that the engine would not find a place for."""
    foreign = [name for name in manifest.names if name not in expected.tensors]
    heads = [name for name in foreign if is_head(name)]
    if expected.tied_head and heads:
        _refuse_ignored_head(heads[0], expected)
    # Where nobody knows whether the engine's head is tied, one is let pass: a tied engine skips it.
    unknown = [name for name in foreign if expected.tied_head is False or name not in heads]
    if unknown:
        missing = expected.tensors.keys() - set(manifest.names)
        guessed = [_with_guess(name, missing) for name in unknown[:_GUESSED]]
        raise ManifestError(
            f"{len(unknown)} of {len(manifest.tensors)} name(s) are unknown to the engine, according to "
            f"{expected.origin}: {some(guessed + unknown[_GUESSED:])}.",
            hint=_prefix_hint(unknown, expected.tensors) or "send names as save_pretrained() writes them",
        )


def _refuse_ignored_head(name: str, expected: Expected) -> None:
    raise ManifestError(
        f"{name!r} would be sent, but the engine's output head is tied to its embedding, according to "
        f"{expected.origin}: it would skip this one without a word, and answer with the embedding instead.",
        hint="tie the head in the trainer as well (an adapter or modules_to_save on the embedding or the head unties "
        "it), or serve a checkpoint whose head is its own: tie_word_embeddings=false",
    )


def check_shapes(manifest: Manifest, expected: Expected) -> None:
    """Refuse shapes that the engine's loaders would fail on, most of them in mid-stream."""
    wrong = list(_differing(manifest, expected, lambda sent, wanted: sent.shape != wanted.shape))
    if wrong:
        said = [f"{sent.name} is {list(sent.shape)}, expected {list(wanted.shape)}" for sent, wanted in wrong]
        raise ManifestError(
            f"{len(wrong)} shape(s) differ from what the engine expects, according to {expected.origin}: {some(said)}.",
            hint=_shape_hint(*wrong[0]),
        )


def check_dtypes(manifest: Manifest, expected: Expected, *, infos: Sequence[EngineInfo], refuse: bool) -> None:
    """Refuse dtypes that no cast makes right, and, where *refuse* says so, any that differ from the engine's."""
    engines = {info.dtype for info in infos}

    def uncastable(sent: TensorMeta, wanted: TensorMeta) -> bool:
        return sent.dtype != wanted.dtype and not {sent.dtype, wanted.dtype} <= _CASTABLE

    def differing(sent: TensorMeta, wanted: TensorMeta) -> bool:
        return sent.dtype not in {wanted.dtype, *engines}

    hint = (
        "send the tensors of a quantised checkpoint as they are in it, scales included, or start the engine from an "
        "unquantised one; a cast without the scales would be garbage"
    )
    wrong = list(_differing(manifest, expected, uncastable))
    if refuse and not wrong:
        hint = "cast the weights before they are sent, or set the option dtype='cast'"
        wrong = list(_differing(manifest, expected, differing))
    if wrong:
        said = [f"{sent.name} is {sent.dtype}, expected {wanted.dtype}" for sent, wanted in wrong]
        raise ManifestError(
            f"{len(wrong)} dtype(s) differ from what the engine expects, according to {expected.origin}: {some(said)}.",
            hint=hint,
        )


def check_modules(manifest: Manifest, expected: Expected, *, infos: Sequence[EngineInfo]) -> None:
    """Refuse modules of which only some parts are sent."""
    touched = {module_of(name) for name in manifest.names}
    missing = modules(_missing(manifest, expected, infos))
    halves = {module: parts for module, parts in missing.items() if module in touched}
    if halves:
        raise half_sent(halves, hint=f"send all their parts; {expected.origin} says what they are")


def check_complete(manifest: Manifest, expected: Expected | None, *, infos: Sequence[EngineInfo]) -> None:
    """Refuse a push that leaves something old."""
    missing = _missing(manifest, expected, infos) if expected else []
    if any(map(is_head, missing)) or _head_left_old(manifest, expected, infos):
        raise ManifestError(
            "The engine has an output head of its own (lm_head.weight), and none is sent; the trainer's is tied to "
            "the embedding. The engine's would stay as it is.",
            hint="load the trainer's model with tie_word_embeddings=False, so that the head is trained and sent; or, "
            "if that of the engine's checkpoint is a mere copy of its embedding, set the option `expected` to it",
        )
    if expected and missing:
        raise ManifestError(
            f"{len(missing)} of {len(expected.tensors)} tensor(s) that the engine expects are not sent, according to "
            f"{expected.origin}: {some(missing)}.",
            hint="send every parameter; a trainer that leaves frozen ones out must declare its pushes partial",
        )


def half_sent(missing: Mapping[str, Sequence[str]], *, hint: str) -> ManifestError:
    """The error for modules that would be sent in part; *missing* has the absent names by module."""
    said = [f"{module} lacks {some(names)}" for module, names in missing.items()]
    return ManifestError(
        f"{len(missing)} module(s) would be sent in part, and an engine may fill the rest with uninitialised memory: "
        f"{some(said)}.",
        hint=hint,
    )


def _missing(manifest: Manifest, expected: Expected, infos: Sequence[EngineInfo]) -> list[str]:
    sent = set(manifest.names)
    tied = bool(infos) and all(info.tied_head for info in infos)
    missing = [name for name in expected.tensors if name not in sent and name not in expected.optional]
    return [name for name in missing if not (tied and is_head(name))]


def _head_left_old(manifest: Manifest, expected: Expected | None, infos: Sequence[EngineInfo]) -> bool:
    """Whether an engine says that its head is untied, and the trainer sends an embedding but no head.

    A checkpoint whose head equals its embedding is believed more: vLLM from 0.29 unties such a model in its config
    while it loads, ties it again by content, and leaves the config as it is.
    """
    if expected and expected.tied_head:
        return False
    untied = any(info.tied_head is False for info in infos)
    return untied and any(map(is_embedding, manifest.names)) and not any(map(is_head, manifest.names))


def _with_guess(name: str, missing: Collection[str]) -> str:
    """*name*, and the missing one of the same layer and expert that was probably meant."""
    numbers = _NUMBER.findall(name)
    guess = closest(name, [other for other in missing if _NUMBER.findall(other) == numbers])
    return f"{name} (meant: {guess}?)" if guess else name


def _prefix_hint(unknown: Sequence[str], known: Collection[str]) -> str:
    """What to do where one prefix too many, or one too few, explains every name; empty where none does."""
    sample = unknown[0]
    for other in known:
        if other.endswith(f".{sample}"):
            prefix = other.removesuffix(sample)
            if all(prefix + name in known for name in unknown):
                return f"put {prefix!r} before these names in the weight source"
        if sample.endswith(f".{other}"):
            prefix = sample.removesuffix(other)
            if all(name.removeprefix(prefix) in known for name in unknown):
                return f"take {prefix!r} off these names in the weight source"
    return ""


def _shape_hint(sent: TensorMeta, wanted: TensorMeta) -> str:
    if len(sent.shape) != len(wanted.shape):
        return "restore tensors that are flattened or packed (quantised layers, FSDP's flat parameters) before sending"
    axes = [axis for axis, (have, want) in enumerate(zip(sent.shape, wanted.shape, strict=True)) if have != want]
    if axes == [0] and _VOCABULARY.fullmatch(sent.name):
        return (
            f"the trainer's vocabulary has {sent.shape[0]} rows and the engine's {wanted.shape[0]}: tokens were added "
            "or rows padded on one side. Start the engine from a checkpoint saved after that, or send only its rows"
        )
    if len(axes) == 1 and wanted.shape[axes[0]] % sent.shape[axes[0]] == 0:
        return "this looks like one shard of the tensor; gather it first (use the adapter for the sharded model)"
    return "check that the engine serves the model that is being trained"


def _differing(
    manifest: Manifest, expected: Expected, differ: Callable[[TensorMeta, TensorMeta], bool]
) -> Iterator[tuple[TensorMeta, TensorMeta]]:
    """Yield (sent, expected) for each name where the two *differ*."""
    for sent in manifest.tensors:
        wanted = expected.tensors.get(sent.name)
        if wanted is not None and differ(sent, wanted):
            yield sent, wanted
