"""A module's structure with other tensors in it, so that a framework's own arithmetic runs without touching the model.

Copying (``copy.deepcopy``) would copy the tensors, and whatever the hooks of a training framework hold on to; a
shadow shares every plain attribute and leaves the hooks behind.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch

from weightwire_torch.claims import is_a

Replace = Callable[[torch.Tensor], torch.Tensor]


def shadow(module: torch.nn.Module, replace: Replace) -> torch.nn.Module:
    """Copy the structure of *module*.

    Args:
        module: what is copied; it is only read.
        replace: what stands in the copy for each of its parameters and buffers.

    Returns:
        A module of the same classes (before FSDP2 put itself in front of them), without hooks. Lists, sets and dicts
        it holds are copies, so that methods that keep book in them leave those of *module* alone.
    """
    twin: torch.nn.Module = object.__new__(_plain_class(module))
    for name, value in vars(module).items():
        twin.__dict__[name] = OrderedDict() if "_hooks" in name else _copied(value)
    parameters = {
        name: None if tensor is None else torch.nn.Parameter(replace(tensor), requires_grad=False)
        for name, tensor in module._parameters.items()  # noqa: SLF001 - what a module is made of
    }
    buffers = {n: None if t is None else replace(t) for n, t in module._buffers.items()}  # noqa: SLF001
    children = {n: None if m is None else shadow(m, replace) for n, m in module._modules.items()}  # noqa: SLF001
    twin.__dict__.update(_parameters=parameters, _buffers=buffers, _modules=children)
    return twin


def _copied(value: object) -> object:
    return value.copy() if type(value) in {dict, list, set} else value  # type: ignore[attr-defined] # these have it


def _plain_class(module: torch.nn.Module) -> type[torch.nn.Module]:
    """FSDP2 gives each module that it wraps a class made for it, whose name transformers, for one, doesn't know."""
    classes = type(module).__mro__
    if not is_a(module, "torch.distributed.fsdp:FSDPModule"):
        return classes[0]
    wrapper = next(index for index, found in enumerate(classes) if found.__name__ == "FSDPModule")
    return classes[wrapper + 1]
