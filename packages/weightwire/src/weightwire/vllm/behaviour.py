"""What vLLM does from which release on, where the wire form alone does not say it.

Each line names the first release that does so; below it the opposite holds. The facts marked * are compared with the
contracts of all releases by integration_tests/tests/test_contracts.py.
"""

from __future__ import annotations

import msgspec

from weightwire.messages import EngineKind, ReceiverLimits

Release = tuple[int, ...]

SINCE: dict[str, Release] = {
    "tells_errors": (0, 18),
    "counts_replicas": (0, 18),
    "safe_packs": (0, 18),
    "reloads_scalars": (0, 20),
    "opens_updates": (0, 21),
    "pauses_together": (0, 21),
    "any_backend_name": (0, 22),
    "failed_update_closes_it": (0, 23),
    "reset_drops_external_caches": (0, 23),
    "reloads_mamba": (0, 24),
    "aborts_requests": (0, 26),
    "keeps_weight_version": (0, 27),
    "reloads_all_quantisations": (0, 27),
    "takes_unique_id": (0, 30),
    "shuts_engine_down": (0, 32),
    "packed_scalars": (0, 32),
    "fenced_packs": (0, 33),
    "empty_update_reuses_names": (0, 33),
    "refuses_requests_while_paused": (0, 33),
}


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """How one release behaves.

    Attributes:
        tells_errors: * what went wrong in the engine is in the answer; before, a 500 says nothing.
        counts_replicas: * the nccl engine numbers its workers over all replicas; before, the replicas of a dense model
            all take the ranks of the first, and wait for each other for ever.
        safe_packs: * an update waits for the streams that packs are loaded on.
        reloads_scalars: a module that holds single numbers alone, such as the scales of a KV cache, is reloaded;
            before, it keeps its old value or fails the update.
        opens_updates: * an update is opened and closed by calls of their own; before, each update call is all of it.
        pauses_together: the replicas of a mixture of experts pause together (vllm PR #39366); before, a forward pass
            may begin on some while others are paused, and wait for them for ever.
        any_backend_name: * the config takes names that vLLM does not know; before, ``nccl`` and ``ipc`` alone.
        failed_update_closes_it: * an update that fails closes the session on the worker; before, it stays open.
        reset_drops_external_caches: * a pause that resets the caches also resets an external KV connector.
        reloads_mamba: a reload counts composed weight loaders right (vllm PR #48284); before, parameters that come
            last in a Mamba mixer are left as garbage, without an error.
        aborts_requests: * ``/abort_requests`` is there.
        keeps_weight_version: * the server keeps a weight version that clients set and read.
        reloads_all_quantisations: a reload runs inside vLLM's config context, which some methods need
            (vllm PR #43124).
        takes_unique_id: * ``nccl_unique_id_b64`` may stand in for the address of a store.
        shuts_engine_down: * ``/shutdown_weight_transfer_engine`` is there; before, a communicator that is replaced
            leaks.
        packed_scalars: * 0-dimensional tensors may travel inside a pack.
        fenced_packs: * packs that are loaded from different streams wait for each other; before, a fused layer whose
            parts lie in two packs is read from a buffer that may be somebody else's by then, when more than one is
            in use (:mod:`weightwire.packing`).
        empty_update_reuses_names: * an update without names repeats the last one, and waits for its bytes.
        refuses_requests_while_paused: new requests get 503 while paused; before, they wait.
    """

    tells_errors: bool
    counts_replicas: bool
    safe_packs: bool
    reloads_scalars: bool
    opens_updates: bool
    pauses_together: bool
    any_backend_name: bool
    failed_update_closes_it: bool
    reset_drops_external_caches: bool
    reloads_mamba: bool
    aborts_requests: bool
    keeps_weight_version: bool
    reloads_all_quantisations: bool
    takes_unique_id: bool
    shuts_engine_down: bool
    packed_scalars: bool
    fenced_packs: bool
    empty_update_reuses_names: bool
    refuses_requests_while_paused: bool


STOCK_DTYPES = (
    "bfloat16",
    "float16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "int32",
    "int64",
    "int8",
    "uint8",
)
"""What vLLM's NCCL binding can name; any other dtype raises in the worker, in mid-transfer."""


def behaviour(release: Release) -> Behaviour:
    """How *release* behaves."""
    return Behaviour(**{name: release >= since for name, since in SINCE.items()})


def limits(release: Release, kind: EngineKind) -> ReceiverLimits:
    """What the receiver of *release* can take: vLLM's own, or ours, which keeps to few of its limits."""
    known = behaviour(release)
    if kind is EngineKind.OURS:
        return ReceiverLimits(whole_modules=not known.opens_updates)
    return ReceiverLimits(
        packed=known.safe_packs,
        num_buffers=2 if known.fenced_packs else 1,
        packed_scalars=known.packed_scalars,
        whole_modules=not known.opens_updates,
        dtypes=STOCK_DTYPES,
    )
