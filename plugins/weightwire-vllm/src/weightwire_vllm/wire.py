"""The POSTs that all releases share, and the pieces that dialects make theirs of. Pure: bytes in, bytes out.

Paths, verbs, keys and answers are compared with the contracts of all releases by
integration_tests/tests/test_contracts.py.
"""

from __future__ import annotations

import msgspec
from weightwire.errors import CompatibilityError, ManifestError
from weightwire.messages import CachePolicy, PauseMode, Rendezvous, TransferPlan, Window


class Post(msgspec.Struct, frozen=True, kw_only=True):
    """One POST.

    Attributes:
        path: the route.
        answer: a key and its value in the body of a success; with None the key alone. Anything else is no success.
        body: JSON, or None to send none.
        params: the query.
    """

    path: str
    answer: tuple[str, str | bool | None]
    body: bytes | None = None
    params: dict[str, str] = {}


RESUME = Post(path="/resume", answer=("status", "resumed"))
CHECK_HEALTH = Post(path="/collective_rpc", answer=("results", None), body=b'{"method":"check_health"}')
"""A call to every worker that does nothing but come back."""
SHUTDOWN = Post(path="/shutdown_weight_transfer_engine", answer=("message", "Weight transfer shut down"))


def init(init_info: msgspec.Struct) -> Post:
    """Tell the workers to join."""
    return Post(
        path="/init_weight_transfer_engine",
        answer=("message", "Weight transfer initialized"),
        body=msgspec.json.encode({"init_info": init_info}),
    )


def start(body: bytes | None = None) -> Post:
    """Open an update."""
    return Post(path="/start_weight_update", answer=("message", "Weight update started"), body=body)


def update(update_info: msgspec.Struct) -> Post:
    """Tell the workers to receive."""
    return Post(
        path="/update_weights",
        answer=("message", "Weights updated"),
        body=msgspec.json.encode({"update_info": update_info}),
    )


def finish(weight_version: str | None = None) -> Post:
    """Close an update; *weight_version* becomes the server's, None leaves it as it is."""
    body = None if weight_version is None else msgspec.json.encode({"weight_version": weight_version})
    return Post(path="/finish_weight_update", answer=("message", "Weight update finished"), body=body)


def pause(mode: PauseMode, cache: CachePolicy) -> Post:
    """Stop generation. Both values are always said: the server's defaults, abort and reset, are rarely meant."""
    return Post(
        path="/pause",
        answer=("status", "paused"),
        params={"mode": mode.value, "clear_cache": "true" if cache is CachePolicy.RESET else "false"},
    )


def mark(weight_version: str) -> Post:
    """Set the version that the server reports."""
    return Post(
        path="/update_weight_version",
        answer=("success", True),
        body=msgspec.json.encode({"new_version": weight_version}),
    )


class Rows(msgspec.Struct, frozen=True):
    """The three parallel lists in which vLLM takes tensors."""

    names: tuple[str, ...]
    dtype_names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


def rows(plan: TransferPlan, window: Window) -> Rows:
    """The tensors of one window.

    Raises:
        ManifestError: there are none. From 0.33 on an update without names repeats the last one and waits for its
            bytes, for ever.
    """
    tensors = plan.manifest.tensors[window.start : window.stop]
    if not tensors:
        raise ManifestError(f"Window {window.index} holds no tensors; an update call must name at least one.")
    return Rows(
        names=tuple(tensor.name for tensor in tensors),
        dtype_names=tuple(tensor.dtype for tensor in tensors),
        shapes=tuple(tensor.shape for tensor in tensors),
    )


def needs_store(rendezvous: Rendezvous) -> Rendezvous:
    """Return *rendezvous* if its store is what the workers meet at.

    Raises:
        CompatibilityError: it brings a unique id, which this release can't take.
    """
    if rendezvous.unique_id:
        raise CompatibilityError(
            "The data plane brings a NCCL unique id; vLLM takes one from 0.30 on and needs a store's address before.",
            hint="let the data plane listen on a store, as it does by default",
        )
    return rendezvous
