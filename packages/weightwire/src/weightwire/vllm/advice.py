"""How to start a vLLM so that it takes weights."""

from __future__ import annotations

import json

from weightwire.errors import CompatibilityError
from weightwire.registry import ServeAdvice
from weightwire.versions import release, within
from weightwire.vllm.behaviour import behaviour
from weightwire.vllm.setups import OLD_NAME, STOCK_BACKEND, our_name

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
OLD_NAME_TAKEN = (
    f"The backend is called {OLD_NAME!r} because this release takes no other names than that and {STOCK_BACKEND!r}: "
    "with weightwire-vllm-engine installed in the server it is ours."
)
NO_ERRORS = "Before 0.18 the server's answers don't say what went wrong: keep its log."


def ways_within(version: str, *, since: str, before: str, hint: str) -> tuple[ServeAdvice, ...]:
    """The same for a control plane that speaks to the releases from *since*, inclusive, to *before*, exclusive.

    Raises:
        CompatibilityError: *version* is none of them; *hint* says what to do.
    """
    if not within(version, since=since, before=before):
        raise CompatibilityError(
            f"vLLM {version} is outside the releases known here: {since} up to, not including, {before}.", hint=hint
        )
    return ways(version)


def ways(version: str) -> tuple[ServeAdvice, ...]:
    """The known ways to start vLLM *version*, the stock one first."""
    known = behaviour(release(version))
    notes = [UNGUARDED]
    notes += [NO_RUST] if (0, 22) <= release(version) < (0, 33) else []
    notes += [] if known.keeps_weight_version else [NO_VERSION]
    notes += [] if known.tells_errors else [NO_ERRORS]
    return (
        _way("stock", STOCK_BACKEND, (), (*notes, SAME_NCCL)),
        _way("ours", our_name(version), ("weightwire-vllm-engine",), (*notes, *_why_named_so(version))),
    )


def _why_named_so(version: str) -> tuple[str, ...]:
    return (OLD_NAME_TAKEN,) if our_name(version) == OLD_NAME else ()


def _way(title: str, backend: str, install: tuple[str, ...], notes: tuple[str, ...]) -> ServeAdvice:
    config = json.dumps({"backend": backend}, separators=(",", ":"))
    return ServeAdvice(
        title=title,
        install=install,
        env={"VLLM_SERVER_DEV_MODE": "1"},
        command=("vllm", "serve", "MODEL", "--host", "127.0.0.1", "--weight-transfer-config", config),
        notes=notes,
    )
