"""What a shim is, and the one way in which shims reach into a worker."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

ANY_DEVICE = ""


class Shim(NamedTuple):
    """A mend for some releases.

    Attributes:
        name: of the file.
        device_type: the platform it is for, in vLLM's words; :data:`ANY_DEVICE` for all.
        since: the first release that needs it, inclusive.
        before: the first that does not, exclusive; past the newest release known, where none is mended yet.
        why: what is wrong, in one line.
        apply: mends it, in this process.
    """

    name: str
    device_type: str
    since: str
    before: str
    why: str
    apply: Callable[[], None]


def after(owner: type, method: str, *, hook: Callable[[Any], None]) -> None:
    """Call *hook* with the object after every call of *method* that succeeds."""
    original = getattr(owner, method)

    @functools.wraps(original)
    def wrapped(self: object, *args: object, **kwargs: object) -> object:
        result: object = original(self, *args, **kwargs)
        hook(self)
        return result

    setattr(owner, method, wrapped)


def worker_class() -> type:
    """The class whose ``start_weight_update`` and ``finish_weight_update`` every worker runs, also on a CPU."""
    found: type = import_module("vllm.v1.worker.gpu_worker").Worker
    return found
