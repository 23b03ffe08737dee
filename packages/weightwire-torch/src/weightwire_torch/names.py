"""From the names in a wrapped module to the names in its checkpoint: small rules, applied in order.

A rule maps a name to a name, or to None when that tensor is not part of the checkpoint. Adapters (for PEFT, for
one) put rules of their own before or behind :data:`WRAPPERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from weightwire.errors import ManifestError

Rule = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Front:
    """Strip *prefix* from the front of a name, as often as it is repeated there."""

    prefix: str

    def __call__(self, name: str) -> str:
        """Apply the rule."""
        while name.startswith(self.prefix):
            name = name[len(self.prefix) :]
        return name


@dataclass(frozen=True, slots=True)
class Segment:
    """Drop every dotted segment that is *segment*, wherever it stands."""

    segment: str

    def __call__(self, name: str) -> str:
        """Apply the rule."""
        if self.segment not in name:
            return name
        return ".".join(part for part in name.split(".") if part != self.segment)


WRAPPERS: tuple[Rule, ...] = (
    Segment("_orig_mod"),  # torch.compile, of the model or of submodules
    Segment("_checkpoint_wrapped_module"),  # activation checkpointing
    Segment("_fsdp_wrapped_module"),  # FSDP1, and what imitates its names
    Front("module."),  # DDP and DeepSpeed; last, since it may stand behind one of the others
)
"""The wrappers that change names and nothing else."""


def normalise(name: str, rules: Sequence[Rule] = WRAPPERS) -> str | None:
    """The checkpoint name of one tensor; None where it has none."""
    current: str | None = name
    for rule in rules:
        if current is None:
            return None
        current = rule(current)
    return current


def normalise_all(names: Iterable[str], rules: Sequence[Rule] = WRAPPERS) -> dict[str, str]:
    """The checkpoint names of many tensors.

    Returns:
        Given name to checkpoint name, in the given order, without those that have none.

    Raises:
        ManifestError: two names become one.
    """
    became: dict[str, str] = {}
    origin: dict[str, str] = {}
    for name in names:
        new = normalise(name, rules)
        if new is None:
            continue
        if new in origin:
            raise ManifestError(
                f"{origin[new]!r} and {name!r} both become {new!r} once the wrappers' prefixes are removed.",
                hint="pass the inner module, or rename one of the two",
            )
        origin[new] = name
        became[name] = new
    return became
