"""Which tensors an engine holds as one module, though a checkpoint names them apart.

An engine loads into modules of its own: vLLM keeps q, k and v of an attention in one parameter, and all experts of a
layer in another. A module that received only some of its parts is neither old nor new: on a stock server the rest is
uninitialised memory, and the reply is 200. So no window may cut a module, and no push may leave part of one out.

The table is what vLLM's ``packed_modules_mapping`` and ``stacked_params_mapping`` say, over all models of 0.21 to 0.33.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Rule(NamedTuple):
    """Parts that become one parameter.

    Attributes:
        whole: what the engine calls it.
        parts: what checkpoints call them.
        unless: a module of this name beside them means that the rule doesn't apply there.
        may_lack: parts that a model may lack in every layer.
    """

    whole: str
    parts: tuple[str, ...]
    unless: tuple[str, ...] = ()
    may_lack: tuple[str, ...] = ()


RULES: tuple[Rule, ...] = (
    # Multi-head latent attention without a compressed query has a q_proj of its own (DeepSeek-V2-Lite); the keys and
    # values come from kv_a_proj_with_mqa.
    Rule("qkv_proj", ("q_proj", "k_proj", "v_proj"), unless=("kv_a_proj_with_mqa", "kv_b_proj", "kv_proj")),
    Rule("fused_qkv_a_proj", ("q_a_proj", "kv_a_proj_with_mqa"), unless=("q_proj", "kv_proj")),
    # Models without a gate have an up_proj alone (Nemotron); a gate beside projections of an attention is another.
    Rule("gate_up_proj", ("gate_proj", "up_proj"), unless=("q_proj", "kv_proj", "o_proj"), may_lack=("gate_proj",)),
    Rule("in_proj_qkvz", ("in_proj_qkv", "in_proj_z")),  # Qwen3.5; Qwen3-Next's checkpoints are fused already
    Rule("in_proj_ba", ("in_proj_b", "in_proj_a")),
    Rule("w13", ("w1", "w3"), may_lack=("w3",)),  # Mixtral, InternLM2, LFM2
    Rule("c_fc", ("c_fc_0", "c_fc_1")),  # EXAONE
    # Mistral's own format and Molmo2 have the first three; the indexer of DeepSeek-V3.2 has wk and weights_proj.
    Rule("wqkv", ("wq", "wk", "wv", "weights_proj"), may_lack=("wq", "wk", "wv", "weights_proj")),
    Rule("query_key_value", ("query", "key", "value"), unless=("receptance",)),  # BERT; not RWKV
)

_RULE_OF = {part: rule for rule in RULES for part in rule.parts}
_EXPERT = re.compile(r"(?P<unit>(?:.*\.)?experts)\.(?P<index>\d+)\.(?P<rest>.+)")
_BLOCK = re.compile(r"(.*?(?:^|\.)\d+)\.")
# Scales of the KV cache live under one part, but belong to the attention beside it.
_CACHE_SCALES = ("q_scale", "k_scale", "v_scale", "output_scale")
# Whisper's keys have no bias, though its queries and values do; vLLM fills in zeros.
_NO_BIAS = "k_proj.bias"


def module_of(name: str) -> str:
    """The module of the engine that the tensor *name* is loaded into.

    Tensors of one module belong into one window. Modules that an engine doesn't fuse may still be named as one: a
    unit that is too large costs nothing, one that is too small corrupts.

    Args:
        name: a checkpoint name.

    Returns:
        A dotted path, such as ``model.layers.0.self_attn.qkv_proj``.
    """
    if expert := _EXPERT.fullmatch(name):
        return expert["unit"]
    parent, part, _ = _split(name)
    rule = _RULE_OF.get(part)
    return _join(parent, rule.whole if rule else part) or name


def block_of(name: str) -> str:
    """The numbered block (a layer, usually) that *name* stands in; empty where it stands in none.

    ``model.layers.3.mlp.experts.7.w1.weight`` stands in ``model.layers.3``.
    """
    match = _BLOCK.match(name)
    return match[1] if match else ""


def part_of(name: str) -> str:
    """The part of its block that the tensor *name* stands in; the module, for one that stands in no block.

    ``model.layers.3.mlp.experts.7.w1.weight`` stands in ``model.layers.3.mlp``. Whatever an engine fuses are siblings,
    so a stretch of whole parts cuts no module, also none that :data:`RULES` do not know.
    """
    block = block_of(name)
    return f"{block}.{name[len(block) + 1 :].partition('.')[0]}" if block else module_of(name)


def modules(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Group *names* by :func:`module_of`, each group in the given order."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[module_of(name)].append(name)
    return {module: tuple(members) for module, members in groups.items()}


def gaps(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Find modules of which only some parts are named, knowing nothing but the names.

    This is the check of last resort, where nobody can say what the engine expects: a part that all layers lack
    alike can be a property of the model, and passes where the table says so.

    Args:
        names: all names of a push.

    Returns:
        The missing names by module; empty when every module is whole.
    """
    known = frozenset(names)
    found: dict[str, list[str]] = defaultdict(list)
    for module, name in (*_missing_parts(known), *_missing_experts(known)):
        if name not in known:
            found[module].append(name)
    return {module: tuple(sorted(missing)) for module, missing in sorted(found.items())}


def _split(name: str) -> tuple[str, str, str]:
    """Take ``a.b.q_proj.weight`` apart into ``a.b``, ``q_proj`` and ``weight``."""
    module, _, leaf = name.rpartition(".")
    parent, _, part = module.rpartition(".")
    return parent, part, leaf


def _join(parent: str, part: str) -> str:
    return f"{parent}.{part}" if parent else part


def _missing_parts(known: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield (module, name) for every part that a rule asks for beside the parts that are there; some may be there."""
    leaves: dict[tuple[str, Rule], set[str]] = defaultdict(set)
    siblings: set[str] = set()
    spoken: set[str] = set()
    for name in known:
        parent, part, leaf = _split(name)
        siblings.add(_join(parent, part))
        spoken.add(part)
        rule = _RULE_OF.get(part)
        if rule and not leaf.endswith(_CACHE_SCALES):
            leaves[parent, rule].add(leaf)
    for (parent, rule), wanted in leaves.items():
        if any(_join(parent, other) in siblings for other in rule.unless):
            continue
        parts = [part for part in rule.parts if part in spoken or part not in rule.may_lack]
        every = (f"{part}.{leaf}" for part in parts for leaf in wanted)
        yield from ((_join(parent, rule.whole), _join(parent, rest)) for rest in every if rest != _NO_BIAS)


def _missing_experts(known: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield (module, name) for every tensor of every expert up to the highest; some may be there."""
    highest: dict[str, int] = defaultdict(int)
    rests: dict[str, set[str]] = defaultdict(set)
    for expert in filter(None, map(_EXPERT.fullmatch, known)):
        unit = expert["unit"]
        highest[unit] = max(highest[unit], int(expert["index"]))
        rests[unit].add(expert["rest"])
    for unit, last in highest.items():
        yield from ((unit, f"{unit}.{index}.{rest}") for index in range(last + 1) for rest in rests[unit])
