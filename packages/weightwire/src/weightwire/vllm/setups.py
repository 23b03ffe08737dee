"""Which set-ups can take weights, and what to type where one can't. Pure: from what a server says of itself."""

from __future__ import annotations

from weightwire.engine_wire import BACKEND, MARK
from weightwire.errors import CompatibilityError, ConfigurationError
from weightwire.messages import EngineKind
from weightwire.versions import release
from weightwire.vllm.behaviour import behaviour
from weightwire.vllm.server_info import Config, ServerInfo, WeightTransfer

STOCK_BACKEND = "nccl"
OLD_NAME = "ipc"
"""The name our engine takes over where vLLM knows no other than ``nccl`` and ``ipc`` (up to 0.21)."""


def advice(version: str) -> str:
    """The command that prints how to start a server."""
    return f"`weightwire serve-args vllm=={version}` prints how to start it"


def our_name(version: str) -> str:
    """The backend that a server of *version* is started with to run our engine."""
    return BACKEND if behaviour(release(version)).any_backend_name else OLD_NAME


def kind(info: ServerInfo, version: str) -> EngineKind:
    """Whether the server runs vLLM's nccl engine or ours.

    Raises:
        ConfigurationError: it runs none, or one that can't be fed.
    """
    config = info.vllm_config.weight_transfer_config
    if config is None:
        raise ConfigurationError(
            "The server was started without weight transfer.",
            hint=f"""start it with --weight-transfer-config '{{"backend":"nccl"}}'; {advice(version)}""",
        )
    if config.backend == STOCK_BACKEND:
        return EngineKind.STOCK
    under_old_name = config.backend == OLD_NAME and not behaviour(release(version)).any_backend_name
    if config.backend == BACKEND or (under_old_name and info.vllm_env.vllm_weightwire_engine):
        return EngineKind.OURS
    hint = f"""start it with --weight-transfer-config '{{"backend":"nccl"}}'; {advice(version)}"""
    if under_old_name:
        hint = (
            f"our engine goes by {OLD_NAME!r} there, but does not announce itself ({MARK}): is weightwire-vllm-engine "
            f"installed in the server's environment? {advice(version)}"
        )
    raise ConfigurationError(
        f"The server's weight-transfer backend is {config.backend!r}; known are {STOCK_BACKEND!r} (vLLM's own) and "
        f"{BACKEND!r} (with weightwire-vllm-engine installed in the server).",
        hint=hint,
    )


def refuse_unsafe(info: ServerInfo, version: str) -> None:
    """Refuse servers that would take the weights and answer wrong.

    Raises:
        ConfigurationError: a feature is on that does not go together with weight updates.
        CompatibilityError: this release reloads this model wrong.
    """
    config, parallel = info.vllm_config, info.vllm_config.parallel_config
    _refuse_replicas(info, version)
    if config.lora_config is not None:
        raise ConfigurationError(
            "The server runs with --enable-lora: its base weights hide behind adapter layers, and an update would "
            "miss them.",
            hint="start it without --enable-lora, and merge adapters on the trainer's side",
        )
    if parallel.enable_eplb:
        raise ConfigurationError(
            "The server balances experts (--enable-eplb): an update would load them where they were at its start.",
            hint="start it without --enable-eplb",
        )
    if parallel.data_parallel_external_lb or parallel.data_parallel_hybrid_lb:
        raise ConfigurationError(
            "The server is one of several that share their data-parallel ranks behind an external load balancer.",
            hint="start one server with --data-parallel-size and vLLM's own balancing",
        )
    if config.weight_transfer_config == WeightTransfer(STOCK_BACKEND) and info.vllm_env.vllm_disable_pynccl:
        raise ConfigurationError(
            "The server runs with VLLM_DISABLE_PYNCCL=1: its nccl engine would receive nothing and load garbage.",
            hint="start it without VLLM_DISABLE_PYNCCL",
        )
    if config.cache_config.mamba_block_size is not None and not behaviour(release(version)).reloads_mamba:
        raise CompatibilityError(
            "The model has Mamba layers, and vLLM before 0.24 reloads those wrong without saying so.",
            hint="serve it with vLLM 0.24 or newer",
        )


def _refuse_replicas(info: ServerInfo, version: str) -> None:
    """Refuse data-parallel replicas that would hang."""
    parallel, known = info.vllm_config.parallel_config, behaviour(release(version))
    if parallel.data_parallel_size == 1:
        return
    if parallel.is_moe_model and not known.pauses_together:
        raise CompatibilityError(
            f"The server runs a mixture of experts in {parallel.data_parallel_size} replicas, which vLLM before 0.21 "
            "does not pause together: an update can hang the server.",
            hint="serve it with vLLM 0.21 or newer, or without --data-parallel-size",
        )
    if info.vllm_config.weight_transfer_config == WeightTransfer(STOCK_BACKEND) and not known.counts_replicas:
        raise CompatibilityError(
            f"The server runs {parallel.data_parallel_size} replicas, and the nccl engine of vLLM before 0.18 gives "
            "them all the same ranks: they would wait for each other for ever.",
            hint="serve it with vLLM 0.18 or newer, or without --data-parallel-size",
        )


def notes(config: Config, version: str, *, engine: EngineKind) -> tuple[str, ...]:
    """What an operator should know of a set-up that works, a sentence each."""
    found = []
    if config.speculative_config is not None:
        found.append("Speculative decoding: the draft model keeps its old weights, so that fewer drafts are accepted.")
    if method := config.model_config.quantization:
        found.append(f"Quantised ({method}): send what the served checkpoint holds; vLLM quantises again by itself.")
        if not behaviour(release(version)).reloads_all_quantisations:
            found.append("Before vLLM 0.27 some quantisation methods can't be reloaded; the update then fails.")
    if engine is EngineKind.STOCK and config.device_config.device == "cpu":
        found.append("A CPU server's nccl engine receives nothing by itself; only a shim in the server lets it.")
    return tuple(found)
