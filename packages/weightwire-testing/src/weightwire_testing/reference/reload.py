"""What vLLM's layer-wise reload does to a model, failures included.

Beginning puts every run-time module's weights away. Shards are kept aside until a module has received as many
elements as it holds; then it is filled with garbage, the shards are copied in, and it is back. Closing puts untouched
modules back as they were, and brings half-loaded ones back with what came: the rest of them stays garbage. Where
vLLM leaves uninitialised memory, this model holds :data:`GARBAGE`, so that a test sees the same every time.

Counting elements instead of shards is what makes a naive retry fail: shards of a failed round stay counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from weightwire_testing.model import EMBEDDING, HEAD, TinyLlama
from weightwire_testing.reference.release import Release

GARBAGE = 1024.0
"""What stands in for uninitialised memory; a power of two, so that every float dtype holds it."""


@dataclass(frozen=True, slots=True)
class RuntimeModule:
    """A module as the server runs it: one or more parameters of the checkpoint, fused.

    Attributes:
        name: its run-time name, such as ``model.layers.0.self_attn.qkv_proj``.
        parts: the checkpoint names of its parts, in order.
        linear: a linear layer, whose parameter is repacked once it is whole.
    """

    name: str
    parts: tuple[str, ...]
    linear: bool


def runtime_modules(model: TinyLlama) -> tuple[RuntimeModule, ...]:
    """The modules of *model*, in the order in which vLLM walks them."""
    found = [RuntimeModule("model.embed_tokens", (EMBEDDING,), linear=False)]
    for index in range(model.shape.layers):
        at = f"model.layers.{index}"
        for path, parts in (
            ("self_attn.qkv_proj", ("q_proj", "k_proj", "v_proj")),
            ("self_attn.o_proj", ("o_proj",)),
            ("mlp.gate_up_proj", ("gate_proj", "up_proj")),
            ("mlp.down_proj", ("down_proj",)),
        ):
            owner = path.partition(".")[0]
            names = tuple(f"{at}.{owner}.{part}.weight" for part in parts)
            found.append(RuntimeModule(f"{at}.{path}", names, linear=True))
        norms = (f"{at}.input_layernorm", f"{at}.post_attention_layernorm")
        found += [RuntimeModule(norm, (f"{norm}.weight",), linear=False) for norm in norms]
    found.append(RuntimeModule("model.norm", ("model.norm.weight",), linear=False))
    if not model.shape.tied:
        found.append(RuntimeModule("lm_head", (HEAD,), linear=False))
    return tuple(found)


@dataclass(slots=True)
class _Away:
    """A module whose weights are put away: what came for it so far, and how many elements that was."""

    shards: list[tuple[str, Tensor]] = field(default_factory=list)
    elements: int = 0


class Reload:
    """The reload of one worker's model. One thread at a time."""

    def __init__(self, model: TinyLlama, release: Release) -> None:
        """Serve *model* as it is."""
        self.model = model
        self.release = release
        self.open = False
        self.garbage: set[str] = set()
        self.modules = runtime_modules(model)
        self._owner = {part: module for module in self.modules for part in module.parts}
        self._away: dict[str, _Away] = {}

    def parameter(self, name: str) -> Tensor:
        """The live tensor behind a checkpoint name, to read and to write in place."""
        return self.model.get_parameter(name).data

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every parameter, by its checkpoint name."""
        return {name: tuple(self.parameter(name).shape) for name in self._owner}

    def begin(self) -> None:
        """Put every module's weights away; one that a failed round left away stays as that round left it."""
        for module in self.modules:
            self._away.setdefault(module.name, _Away())
        self.open = True

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take shards in.

        Raises:
            ValueError: the model has no such parameter.
            AttributeError, AssertionError, RuntimeError: what vLLM's loaders raise for a wrong shape or a module
                that is already back.
        """
        for name, tensor in weights:
            module = self._owner.get(name)
            if module is None:
                self._unknown(name)
            elif module.name in self._away:
                self._take(module, name, tensor)
            else:
                self._late(module, name, tensor)

    def finish(self) -> None:
        """Bring back what is still away.

        Raises:
            AssertionError, RuntimeError: a shard that was kept aside does not fit; it will not at the next try either,
                and the modules after it stay away.
        """
        for module in self.modules:
            away = self._away.get(module.name)
            if away is None:
                continue
            if away.elements:
                self._bring_back(module, away)
            else:
                del self._away[module.name]
        self.open = False

    def copy(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Write straight into live parameters: the kernel format of old releases.

        Raises:
            AttributeError: the model has no such parameter.
            RuntimeError: a shape does not fit.
        """
        for name, tensor in weights:
            self.parameter(name).copy_(tensor)

    def incomplete(self, names: Iterable[str]) -> list[str]:
        """Modules of which *names* are some parts but not all."""
        given = set(names)
        return [m.name for m in self.modules if 0 < len(given.intersection(m.parts)) < len(m.parts)]

    def _unknown(self, name: str) -> None:
        if name == HEAD:
            return  # a tied head: vLLM skips it
        inner = name.startswith("model.layers.") and name.split(".")[2] in map(str, range(self.model.shape.layers))
        if inner and self.release.unchecked_inner_names:
            return
        where, missing = ("LlamaModel", name.removeprefix("model.")) if inner else ("LlamaForCausalLM", name)
        raise ValueError(f"There is no module or parameter named '{missing.removesuffix('.weight')}' in {where}.")

    def _take(self, module: RuntimeModule, name: str, tensor: Tensor) -> None:
        away = self._away[module.name]
        # Kept before it is checked, as vLLM does: a shard that does not fit fails every later finish too, unless it
        # is the module's first, whose elements are then not counted. A view and no copy, as there: whoever receives
        # into the same memory again before the module is whole changes what will be loaded.
        away.shards.append((name, tensor))
        self._check_shape(module, name, tensor)
        away.elements += tensor.numel()
        if away.elements >= sum(self.parameter(part).numel() for part in module.parts):
            self._bring_back(module, away)

    def _bring_back(self, module: RuntimeModule, away: _Away) -> None:
        for name, tensor in away.shards:
            self._check_shape(module, name, tensor)
        for part in module.parts:
            self.parameter(part).fill_(GARBAGE)
        for name, tensor in away.shards:
            self.parameter(name).copy_(tensor)
        self.garbage.discard(module.name)
        if {name for name, _ in away.shards} != set(module.parts):
            self.garbage.add(module.name)
        del self._away[module.name]

    def _late(self, module: RuntimeModule, name: str, tensor: Tensor) -> None:
        """A shard for a module that is back: its parameter is repacked and knows no loader, unless it is plain."""
        if not module.linear:
            self._check_shape(module, name, tensor)
            self.parameter(name).copy_(tensor)
        elif self.release.since(23):
            raise AttributeError("'Parameter' object has no attribute 'weight_loader'")
        else:
            raise ValueError(f"Attempted to load weight ({tensor.shape}) into parameter (torch.Size([0]))")

    def _check_shape(self, module: RuntimeModule, name: str, tensor: Tensor) -> None:
        expected = self.parameter(name).shape
        if tensor.shape == expected:
            return
        if not module.linear:
            raise ValueError(f"Attempted to load weight ({tensor.shape}) into parameter ({expected})")
        if len(module.parts) == 1:
            raise AssertionError  # an assertion without words in vLLM's linear loaders
        raise RuntimeError(f"start (0) + length ({tensor.shape[0]}) exceeds dimension size ({expected[0]}).")


@torch.no_grad()
def commit(reload: Reload, weights: dict[str, Tensor]) -> None:
    """Copy whole modules into the live model at once: the swap of a staged round.

    Raises:
        ValueError: a module is not whole, and nothing was changed.
    """
    torn = reload.incomplete(weights)
    if torn:
        raise ValueError(f"Half of a fused layer was staged, nothing is committed: {', '.join(torn)}")
    reload.copy(weights.items())
    reload.garbage -= {module.name for module in reload.modules if set(module.parts) <= weights.keys()}
