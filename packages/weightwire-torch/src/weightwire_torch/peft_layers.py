"""What PEFT puts around and into a model: which of its tensors belong to which checkpoint name.

Seen in PEFT 0.21: an adapted layer keeps the checkpoint's own tensors below ``base_layer`` and the adapter's beside
it; ``modules_to_save`` keeps the original beside one trained copy an adapter; and a ``PeftModel`` stands in front of it
all as ``base_model.model.``.

There is no weight source for PEFT: adapters stand in plain models and in sharded ones, and every source of a module
merges them layer by layer, behind whatever makes the layer whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from weightwire.errors import ManifestError

from weightwire_torch.claims import is_a, loaded
from weightwire_torch.names import WRAPPERS, Front, Rule, Segment

RULES: tuple[Rule, ...] = (*WRAPPERS, Front("base_model.model."), Segment("base_layer"), Segment("token_adapter"))
"""The wrappers that change names and nothing else, PEFT's among them."""

_MODEL = "peft.peft_model:PeftModel"
_TUNER_LAYER = "peft.tuners.tuners_utils:BaseTunerLayer"
_TWO_COPIES = "peft.utils.other:ModulesToSaveWrapper"


class TunerLayer(Protocol):
    """PEFT's ``BaseTunerLayer``, as far as it is used here."""

    disable_adapters: bool
    merged: bool

    def merge(self) -> None:
        """Merge the active adapters into the base layer's own tensors."""

    def get_base_layer(self) -> torch.nn.Module:
        """The layer of the checkpoint, however deeply it is wrapped."""


class _TwoCopies(Protocol):
    disable_adapters: bool
    active_adapters: Sequence[str]
    modules_to_save: torch.nn.ModuleDict


class _Model(Protocol):
    active_adapter: str
    active_peft_config: _Config


class _Config(Protocol):
    is_prompt_learning: bool
    peft_type: str


def tuner_layers(module: torch.nn.Module) -> list[TunerLayer]:
    """Every layer with adapters in *module*, itself included, the outer ones first."""
    return [cast("TunerLayer", found) for found in module.modules() if is_a(found, _TUNER_LAYER)]


def adapted_layers(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The outermost layers with adapters in them, by name; those nested in them are theirs."""
    found: dict[str, torch.nn.Module] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if is_a(module, _TUNER_LAYER) and owner(name, found) is None:
            found[name] = module
    return found


def owner(name: str, prefixes: Mapping[str, object]) -> str | None:
    """Which of *prefixes* the dotted *name* lies below, if any."""
    at = name.rfind(".")
    while at > 0:
        if name[:at] in prefixes:
            return name[:at]
        at = name.rfind(".", 0, at)
    return None


def refuse_prompts(model: torch.nn.Module) -> None:
    """Refuse adapters that are no change of weights.

    Raises:
        ManifestError: the active adapter is learned prompt tokens, which can't be merged into any weight.
    """
    for found in (cast("_Model", module) for module in model.modules() if is_a(module, _MODEL)):
        if found.active_peft_config.is_prompt_learning:
            raise ManifestError(
                f"The adapter {found.active_adapter!r} is a {found.active_peft_config.peft_type}: prompts that were "
                "learned, no change of weights, so there is nothing to send.",
                hint="train a LoRA, or serve the prompts with the engine's own means",
            )


@dataclass(frozen=True, slots=True)
class CopyInUse:
    """Picks, in a module that PEFT keeps twice, the copy that the forward uses: the active adapter's, if it has one.

    Attributes:
        chosen: the name of that copy, by the name of the module.
    """

    chosen: Mapping[str, str]

    def __call__(self, name: str) -> str | None:
        """Apply the rule; names are those of the module that was asked, wrappers included."""
        module = owner(name, self.chosen)
        if module is None:
            return name
        copy = f"{self.chosen[module]}."
        return f"{module}.{name.removeprefix(copy)}" if name.startswith(copy) else None


@dataclass(frozen=True, slots=True)
class Beside:
    """Drops what a ``PeftModel`` holds beside the model: banks of vectors that adapters share.

    Attributes:
        fronts: what stands in front of the names in each such model.
    """

    fronts: tuple[str, ...]

    def __call__(self, name: str) -> str | None:
        """Apply the rule."""
        outside = (name.startswith(f) and not name.startswith(f"{f}base_model.model.") for f in self.fronts)
        return None if any(outside) else name


def rules(model: torch.nn.Module) -> Sequence[Rule]:
    """The rules from the names in *model* to those of its checkpoint, but for tensors of adapted layers."""
    modules = list(model.named_modules(remove_duplicate=False))
    chosen = {n: f"{n}.{_copy_in_use(cast('_TwoCopies', m))}" for n, m in modules if is_a(m, _TWO_COPIES)}
    fronts = tuple(f"{name}." if name else "" for name, module in modules if is_a(module, _MODEL))
    return (CopyInUse(chosen), Beside(fronts), *RULES)


def choosers() -> tuple[type, ...]:
    """The classes of PEFT's modules that have a :func:`choice`; none where PEFT was never imported."""
    return loaded(_MODEL, _TWO_COPIES)


def choice(module: torch.nn.Module) -> str:
    """What *module* would use now, where other tensors are sent for it, or none can be, once that changes."""
    return cast("_Model", module).active_adapter if is_a(module, _MODEL) else _copy_in_use(cast("_TwoCopies", module))


def _copy_in_use(module: _TwoCopies) -> str:
    active = [name for name in module.active_adapters if name in module.modules_to_save]
    return f"modules_to_save.{active[0]}" if active and not module.disable_adapters else "original_module"
