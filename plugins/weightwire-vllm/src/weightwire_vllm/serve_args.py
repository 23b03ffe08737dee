"""How to start a vLLM so that it takes weights."""

from __future__ import annotations

import json

from weightwire.engine_wire import BACKEND
from weightwire.errors import CompatibilityError
from weightwire.registry import ServeAdvice
from weightwire.versions import release, within

from weightwire_vllm.behaviour import behaviour
from weightwire_vllm.plugin import BEFORE, SINCE
from weightwire_vllm.setups import OLD_NAME, STOCK_BACKEND

UNGUARDED = (
    "The weight-transfer routes are never authenticated, not even with --api-key, and whoever reaches them can run "
    "code on the workers: listen on loopback or a private network alone."
)
SAME_NCCL = (
    "Every rank of a group needs one NCCL version; a mismatch hangs. VLLM_NCCL_SO_PATH sets the server's library, "
    "the option nccl_library (WEIGHTWIRE_NCCL_LIBRARY) the trainer's."
)
NO_RUST = "Leave VLLM_USE_RUST_FRONTEND unset: before 0.33 that frontend has no weight-transfer routes."
NO_VERSION = "Before 0.27 the server keeps no weight version: a server that is found paused counts as torn."


def advise(version: str) -> tuple[ServeAdvice, ...]:
    """The known ways to start vLLM *version*, the stock one first.

    Raises:
        CompatibilityError: this control plane does not speak to it.
    """
    if not within(version, since=SINCE, before=BEFORE):
        raise CompatibilityError(
            f"vLLM {version} is outside the releases known here: {SINCE} up to, not including, {BEFORE}.",
            hint="pip install weightwire-vllm-legacy"
            if release(version) < release(SINCE)
            else "upgrade weightwire-vllm",
        )
    return (
        _advice("stock", STOCK_BACKEND, (), (UNGUARDED, SAME_NCCL, *_by_release(version))),
        _advice("ours", _our_name(version), ("weightwire-vllm-engine",), (UNGUARDED, *_by_release(version))),
    )


def _advice(title: str, backend: str, install: tuple[str, ...], notes: tuple[str, ...]) -> ServeAdvice:
    config = json.dumps({"backend": backend}, separators=(",", ":"))
    return ServeAdvice(
        title=title,
        install=install,
        env={"VLLM_SERVER_DEV_MODE": "1"},
        command=("vllm", "serve", "MODEL", "--host", "127.0.0.1", "--weight-transfer-config", config),
        notes=notes,
    )


def _our_name(version: str) -> str:
    return BACKEND if behaviour(release(version)).any_backend_name else OLD_NAME


def _by_release(version: str) -> tuple[str, ...]:
    number = release(version)
    found = [NO_RUST] if (0, 22) <= number < (0, 33) else []
    found += [] if behaviour(number).keeps_weight_version else [NO_VERSION]
    return tuple(found)
