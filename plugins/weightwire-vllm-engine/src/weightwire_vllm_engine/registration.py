"""What happens when vLLM loads the plugin: the engine gets its name, and the release gets its shims."""

from __future__ import annotations

import logging
from importlib import import_module, metadata

from weightwire.engine_wire import BACKEND
from weightwire.versions import within

from weightwire_vllm_engine import shims

log = logging.getLogger(__name__)

FACTORY = "vllm.distributed.weight_transfer.factory"
ENGINE = ("weightwire_vllm_engine.engine", "WeightwireEngine")

BORROWED_NAME = "ipc"
"""The name it runs under where the command line takes ``nccl`` and ``ipc`` only. Never ``nccl``: a trainer that knows
nothing of us would be fed to the wrong engine."""

ANNOUNCEMENT = "VLLM_WEIGHTWIRE_ENGINE"
"""Under the borrowed name, a variable tells our engine from vLLM's: ``GET /server_info`` lists those vLLM declares."""


def register() -> None:
    """Register the engine in vLLM's factory, lazily, and apply the shims of this release. Safe to call again."""
    version = str(import_module("vllm").__version__)
    factory = import_module(FACTORY).WeightTransferEngineFactory
    if BACKEND not in factory._registry:  # noqa: SLF001 - register_engine refuses a name that is taken, has() is missing
        factory.register_engine(BACKEND, *ENGINE)
    if names_are_fixed(version):
        # register_engine refuses a name that is taken, so the entry is replaced.
        factory._registry[BORROWED_NAME] = factory._registry[BACKEND]  # noqa: SLF001
        import_module("vllm.envs").environment_variables[ANNOUNCEMENT] = _our_version
        log.info("vLLM %s knows no other names: Weightwire's engine answers to %r.", version, BORROWED_NAME)
    shims.apply(version)


def names_are_fixed(version: str) -> bool:
    """Whether ``--weight-transfer-config`` takes nothing but ``nccl`` and ``ipc``: up to 0.21 (a ``Literal``)."""
    return within(version, since="0.17", before="0.22")


def _our_version() -> str:
    return metadata.version("weightwire-vllm-engine")
