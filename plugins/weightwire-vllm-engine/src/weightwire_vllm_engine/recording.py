"""Finding out what a model's loaders do with a manifest, without doing it.

The loaders are called with tensors that have a shape and no bytes (torch's ``meta`` device), on the running model.
Beneath them every operation of torch is watched: views are let through, and what would write into the model is noted
and not done. So the model's tensors stay as they are, whatever a loader does, and what was noted is which part of which
tensor would have been copied where. A loader that computes, with what it is given or with what the model has, or keeps
what it is given, or writes anything but a copy, can't be followed: something would come of it that a copy does not
bring. It is refused, and runs again in the reload of the same round, with bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from weightwire.messages import TensorMeta
from weightwire_torch.dtypes import torch_dtype

from weightwire_vllm_engine.plan import HalfLoadedError, Home, Piece, Plan, UnplannableError, homes

_COPY = torch.ops.aten.copy_.default
_FILLS = (torch.ops.aten.fill_.Scalar, torch.ops.aten.zero_.default)


def record(model: Any, tensors: Sequence[TensorMeta]) -> Plan:
    """The plan of *model* for *tensors*. The model is not changed.

    Raises:
        UnplannableError: it has none; says why.
    """
    watch = _Watch(model, tensors)
    given = [(meta.name, source) for meta, source in zip(tensors, watch.sources, strict=True)]
    try:
        with torch.no_grad(), watch:
            model.load_weights(given)
    except UnplannableError:
        raise
    except Exception as error:  # whatever a loader makes of tensors without bytes
        raise UnplannableError(f"its loaders can't be followed: {type(error).__name__}: {error}") from error
    finally:
        replaced = _put_back(watch.before)
    if replaced:
        raise UnplannableError(f"{replaced} is replaced by its loader")
    watch.check_coverage()
    watch.check_nothing_kept(model)
    return Plan(
        tuple(tuple(watch.pieces[index]) for index in range(len(tensors))),
        tuple(tuple(watch.landed[index]) for index in range(len(tensors))),
        tuple(watch.before),
    )


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation that loaders come to."""

    def __init__(self, model: torch.nn.Module, tensors: Sequence[TensorMeta]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sources = [torch.empty(meta.shape, dtype=torch_dtype(meta.dtype), device="meta") for meta in tensors]
        self.pieces: dict[int, list[Piece]] = defaultdict(list)
        self.landed: dict[int, list[Home]] = defaultdict(list)
        self.before = list(homes(model))
        self._homes = _by_address(self.before)
        self._tensors = tensors
        self._source = {_storage(tensor): index for index, tensor in enumerate(self.sources)}
        self._written: dict[int, list[tuple[int, int]]] = defaultdict(list)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False))  # noqa: SLF001
        named |= kwargs or {}
        written = [name for tensor in _written(func, named) if (name := self._name_of(tensor))]
        if not written:
            result = func(*args, **(kwargs or {}))
            self._refuse_computing(func, named.values(), result)
            return result
        target = args[0]
        home = self._homes.get(_storage(target)) if isinstance(target, torch.Tensor) else None
        if home is None or func not in (_COPY, *_FILLS):
            raise UnplannableError(f"{written[0]} is not copied into, but changed by {func}")
        if func is _COPY:
            self._note_copy(home, target, args[1])
        self._note_extent(home, target)
        return target

    def check_nothing_kept(self, model: torch.nn.Module) -> None:
        """No module may keep what it was given as it came.

        Raises:
            UnplannableError: one does; names it.
        """
        for name, module in model.named_modules():
            held = [vars(module), *[vars(tensor) for tensor in module.parameters(recurse=False)]]
            for attribute, value in (item for one in held for item in one.items()):
                if any(_storage(tensor) in self._source for tensor in _tensors_in((value,))):
                    raise UnplannableError(f"{name} keeps what it is given, as {attribute}")

    def check_coverage(self) -> None:
        """Every parameter must be written to the last element, each element once.

        Raises:
            UnplannableError: one is not; names it.
        """
        for home in self._homes.values():
            written = sorted(self._written[id(home.tensor)])
            if not written and not isinstance(home.tensor, torch.nn.Parameter):
                continue  # a buffer that no checkpoint fills, such as a table of angles
            if any(stop > start for (_, stop), (start, _) in pairwise(written)):
                raise UnplannableError(f"parts of {home.name} are loaded twice")
            covered = sum(stop - start for start, stop in written)
            if covered != home.tensor.numel():
                raise UnplannableError(f"{covered} of {home.tensor.numel()} elements of {home.name} would be loaded")

    def _refuse_computing(self, func: Any, args: Iterable[object], result: object) -> None:
        """Raise where anything but a view is made of a tensor of the model, or of one that was given."""
        for tensor in _tensors_in(args):
            name = self._name_of(tensor)
            made = _tensors_in((result,))
            if name and not (made and all(_storage(one) == _storage(tensor) for one in made)):
                raise UnplannableError(f"a loader computes with {name} ({func})")

    def _name_of(self, tensor: torch.Tensor) -> str:
        """The model's tensor, or the one that was given, that *tensor* is a view of; empty for another."""
        home, index = self._homes.get(_storage(tensor)), self._source.get(_storage(tensor))
        if index is not None:
            return self._tensors[index].name
        return home.name if home is not None else ""

    def _note_copy(self, home: Home, target: torch.Tensor, source: torch.Tensor) -> None:
        index = self._source.get(_storage(source))
        if index is None:
            raise UnplannableError(f"what is loaded into {home.name} is none of what was given")
        if source.dtype != self.sources[index].dtype:
            raise UnplannableError(f"{self._tensors[index].name} is read as other numbers than it holds")
        if source.shape != target.shape:
            raise UnplannableError(f"{self._tensors[index].name} is spread out to fill {home.name}")
        piece = Piece(target.detach(), int(source.storage_offset()), tuple(source.shape), tuple(source.stride()))
        self.pieces[index].append(piece)
        self.landed[index].append(home)

    def _note_extent(self, home: Home, target: torch.Tensor) -> None:
        if target.dtype != home.tensor.dtype:
            raise UnplannableError(f"{home.name} is loaded as other numbers than it holds")
        if not target.is_contiguous():
            raise UnplannableError(f"parts of {home.name} that do not lie in one run are loaded")
        if target.numel():
            first = int(target.storage_offset()) - int(home.tensor.storage_offset())
            self._written[id(home.tensor)].append((first, first + target.numel()))


def _put_back(before: Iterable[Home]) -> str:
    """Give the modules back the tensors that they had; return the name of one that was replaced, or nothing.

    vLLM's backend for transformers makes the bias of an output head anew whenever it loads one (0.32, ``causal.py``).
    """
    replaced = ""
    for home in before:
        places: tuple[dict[str, Any], ...] = home.owner._parameters, home.owner._buffers  # noqa: SLF001 - attributes may be computed
        for held in places:
            if home.leaf in held and held[home.leaf] is not home.tensor:
                held[home.leaf] = home.tensor
                replaced = home.name
    return replaced


def _by_address(tensors: Iterable[Home]) -> dict[int, Home]:
    """The tensors of a model by their storage. A buffer may be a view of a parameter, and is then no place of its own.

    Raises:
        UnplannableError: some have no bytes, or two parameters share them.
    """
    found: dict[int, Home] = {}
    for home in sorted(tensors, key=lambda home: not isinstance(home.tensor, torch.nn.Parameter)):
        if home.tensor.is_meta:
            raise HalfLoadedError(f"{home.name} has no memory: an update was left half done")
        if not home.tensor.numel():
            if isinstance(home.tensor, torch.nn.Parameter):
                raise UnplannableError(f"{home.name} was taken away when the model was loaded: it is kept packed")
            continue
        other = found.setdefault(_storage(home.tensor), home)
        if other is not home and isinstance(home.tensor, torch.nn.Parameter):
            raise UnplannableError(f"{home.name} and {other.name} lie in one piece of memory")
    return found


def _written(func: Any, named: Mapping[str, object]) -> list[torch.Tensor]:
    """The arguments that an operation writes into, as its schema says."""
    aliases = ((one.name, one.alias_info) for one in func._schema.arguments)  # noqa: SLF001
    return _tensors_in(named.get(name) for name, alias in aliases if alias is not None and alias.is_write)


def _tensors_in(things: Iterable[object]) -> list[torch.Tensor]:
    """The tensors among things, also in the containers among them."""
    flat = [part for thing in things for part in _parts(thing)]
    return [thing for thing in flat if isinstance(thing, torch.Tensor)]


def _parts(thing: object) -> Iterable[object]:
    if isinstance(thing, dict):
        return thing.values()
    return thing if isinstance(thing, list | tuple | set) else (thing,)


def _storage(tensor: torch.Tensor) -> int:
    """What a tensor and its views have in common, also where there are no bytes and so no address."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - the address of torch's own record of it
