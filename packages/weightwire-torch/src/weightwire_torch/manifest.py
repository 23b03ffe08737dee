"""A manifest from tensors: what can be sent, in which order, and which tensors are gathered together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

import torch
from torch.nn.parameter import is_lazy
from weightwire.errors import ManifestError
from weightwire.messages import Manifest, TensorMeta
from weightwire.wording import some

from weightwire_torch.dtypes import TORCH_DTYPES, may_become, torch_dtype, wire_name


def manifest_of(named: Iterable[tuple[str, torch.Tensor]], *, dtype: str = "") -> Manifest:
    """Describe *named* tensors, one group a layer.

    Args:
        named: checkpoint names and tensors, in the order in which they shall travel.
        dtype: name of a floating dtype that plain floating tensors are sent in; empty to send them as they are.

    Raises:
        ManifestError: there is nothing to send, or a tensor can't be sent; names it.
    """
    tensors = tuple(meta_of(name, tensor, dtype=dtype) for name, tensor in named)
    return checked(Manifest(tensors=tensors, groups=groups_by_layer([meta.name for meta in tensors])))


def checked(manifest: Manifest) -> Manifest:
    """Return *manifest* if it names something, and nothing twice.

    Raises:
        ManifestError: it is empty, or a name stands in it twice.
    """
    if not manifest.tensors:
        raise ManifestError("There are no tensors to send: the model has no parameters.")
    seen: set[str] = set()
    for name in manifest.names:
        if name in seen:
            raise ManifestError(f"The tensor {name!r} is there twice; an engine would load only one of them.")
        seen.add(name)
    return manifest


def meta_of(name: str, tensor: torch.Tensor, *, dtype: str = "") -> TensorMeta:
    """Describe one tensor.

    Raises:
        ManifestError: it can't be sent; says why, and what to install or to do.
    """
    refuse_unsendable(name, tensor)
    cast = dtype and may_become(tensor.dtype, torch_dtype(dtype))
    return TensorMeta(name, dtype if cast else wire_name(tensor.dtype), tuple(tensor.shape))


def refuse_unsendable(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor that is not whole, or not of a kind that travels.

    Raises:
        ManifestError: says why, and what to install or to do.
    """
    refusal = next((refusal for refuses, refusal in _REFUSALS if refuses(tensor)), None)
    if refusal is not None:
        why, hint = refusal
        raise ManifestError(
            f"The tensor {name!r} {why} (dtype {wire_name(tensor.dtype)}, shape {tuple(tensor.shape)}).", hint=hint
        )


def refuse_formless(model: torch.nn.Module) -> None:
    """Refuse parameters that have no shape yet, or no plain storage: nothing else can be asked of them.

    Raises:
        ManifestError: names the first.
    """
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ManifestError(
                f"The tensor {name!r} has no shape yet: its layer is lazy, and was never run.",
                hint="run one batch through the model before weightwire.connect()",
            )
        if parameter.layout is not torch.strided:
            refuse_unsendable(name, parameter)


def refuse_other(manifest: Manifest, first: Manifest) -> None:
    """Refuse names or shapes that are not those of the *first* manifest. Dtypes may change: they are cast, or refused.

    Raises:
        ManifestError: says what has changed.
    """
    now, then = ({meta.name: meta.shape for meta in one.tensors} for one in (manifest, first))
    if now == then:
        return
    changes = {
        "new": [name for name in now if name not in then],
        "gone": [name for name in then if name not in now],
        "of another shape": [
            f"{name} ({list(shape)}, was {list(then[name])})"
            for name, shape in now.items()
            if then.get(name, shape) != shape
        ],
    }
    said = [f"{len(names)} {how}: {some(names)}" for how, names in changes.items() if names]
    raise ManifestError(f"The model is not made of what the session was opened with: {'; '.join(said)}.")


def groups_by_layer(names: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Cut a sequence of names where the layer changes.

    The layer is what stands up to the outermost integer segment (``model.layers.7``); names without one before,
    between and behind the layers form groups of their own.

    Returns:
        Half-open ranges that cover *names* in order.
    """
    groups: list[tuple[int, int]] = []
    start = 0
    for _, members in groupby(names, key=_layer):
        stop = start + len(list(members))
        groups.append((start, stop))
        start = stop
    return tuple(groups)


def _layer(name: str) -> str:
    parts = name.split(".")
    first = next((i for i, part in enumerate(parts) if part.isdecimal()), -1)
    return ".".join(parts[: first + 1])


def is_dtensor(tensor: torch.Tensor) -> bool:
    """Whether *tensor* is a DTensor.

    Its module is not imported for that (it costs half a second): where it was never imported, nothing is one.
    """
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _is_partitioned(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "ds_id") and tensor.numel() == 0


_REFUSALS: tuple[tuple[Callable[[torch.Tensor], bool], tuple[str, str]], ...] = (
    (is_dtensor, ("is sharded, a DTensor", "pip install weightwire-fsdp2")),
    (
        _is_partitioned,
        (
            "is partitioned by DeepSpeed ZeRO-3",
            "pip install weightwire-deepspeed, and pass the DeepSpeed engine instead of its module",
        ),
    ),
    (
        lambda tensor: type(tensor).__name__ == "FlatParameter",
        ("is flattened by FSDP1", "wrap the model with fully_shard (FSDP2), and pip install weightwire-fsdp2"),
    ),
    (lambda tensor: tensor.is_meta, ("has no values, it is on the meta device", "load the weights first")),
    (lambda tensor: tensor.layout is not torch.strided, ("is not dense", "send tensor.to_dense()")),
    (lambda tensor: tensor.numel() == 0, ("is empty", "find out what emptied it, or remove it from the model")),
    (
        lambda tensor: wire_name(tensor.dtype) not in TORCH_DTYPES,
        ("has a dtype that can't be sent", f"cast it to one of {', '.join(TORCH_DTYPES)}"),
    ),
)
"""Why a tensor can't be sent, as it reads behind its name, and a hint. The first that holds is said."""
