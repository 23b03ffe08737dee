"""The routes that answer without asking the core, so that they go on answering whatever it does."""

from __future__ import annotations

import time
from http import HTTPStatus

from weightwire_testing.reference import bodies
from weightwire_testing.reference.engine import Engine
from weightwire_testing.reference.exchange import Reply, Request, invalid, ok
from weightwire_testing.reference.settings import Backend

_STARTED = int(time.time())


def version(engine: Engine, _request: Request) -> Reply:
    """The release it behaves as."""
    return ok({"version": engine.settings.version})


def health(engine: Engine, _request: Request) -> Reply:
    """200 as long as the core lives, also while it is blocked, and with mixed weights."""
    return Reply(HTTPStatus.SERVICE_UNAVAILABLE if engine.core.dead else HTTPStatus.OK)


def models(engine: Engine, _request: Request) -> Reply:
    """The one model."""
    card = {
        "id": engine.settings.served_name,
        "object": "model",
        "created": _STARTED,
        "owned_by": "vllm",
        "root": engine.settings.checkpoint,
        "parent": None,
        "max_model_len": engine.max_tokens,
        "permission": [],
    }
    return ok({"object": "list", "data": [card]})


def world_size(engine: Engine, request: Request) -> Reply:
    """How many workers there are, over all data-parallel ranks or in one."""
    settings = engine.settings
    include = bodies.flag(request, "include_dp", default=True)
    return ok({"world_size": settings.world_size if include else settings.workers})


def metrics(engine: Engine, _request: Request) -> Reply:
    """The one gauge that tells sleep from pause."""
    name = engine.settings.served_name
    lines = "".join(
        f'vllm:engine_sleep_state{{engine="{rank}",model_name="{name}",sleep_state="awake"}} '
        f"{0.0 if engine.core.sleeping else 1.0}\n"
        for rank in range(engine.settings.data_parallel)
    )
    return Reply(HTTPStatus.OK, lines.encode(), "text/plain; version=0.0.4; charset=utf-8")


def server_info(engine: Engine, request: Request) -> Reply:
    """The configuration: the part of vLLM's that a client may read."""
    shape = request.query.get("config_format", "text")
    if shape not in {"text", "json"}:
        raise invalid("literal_error", "query.config_format", message="Input should be 'text' or 'json'", found=shape)
    config = _config(engine)
    return ok(
        {
            "vllm_config": config if shape == "json" else str(config),
            "vllm_env": _environment(engine),
            "system_env": {},
        }
    )


def _config(engine: Engine) -> dict[str, dict[str, object] | None]:
    settings = engine.settings
    config: dict[str, dict[str, object] | None] = {
        "model_config": {
            "model": settings.checkpoint,
            "dtype": engine.dtype,
            "quantization": None,
            "max_model_len": engine.max_tokens,
            "served_model_name": settings.served_name,
            "skip_tokenizer_init": True,
        },
        "parallel_config": {
            "tensor_parallel_size": settings.workers,
            "pipeline_parallel_size": 1,
            "data_parallel_size": settings.data_parallel,
            "data_parallel_external_lb": False,
            "data_parallel_hybrid_lb": False,
            "world_size": settings.workers,
            "enable_eplb": False,
            "is_moe_model": False,
        },
        "cache_config": {"enable_prefix_caching": True, "mamba_block_size": None},
        "device_config": {"device": "cpu", "device_type": "cpu"},
        "weight_transfer_config": _weight_transfer(engine),
        "lora_config": None,
        "speculative_config": None,
    }
    for section, said in settings.reported.items():
        config[section] = {**(config.get(section) or {}), **said}
    return config


def _weight_transfer(engine: Engine) -> dict[str, object] | None:
    backend = engine.settings.backend
    if backend is Backend.NONE:
        return None
    if backend is Backend.WEIGHTWIRE and not engine.release.since(22):
        return {"backend": "ipc"}  # vLLM knew no names but nccl and ipc; ours takes one of them over
    return {"backend": backend.value}


def _environment(engine: Engine) -> dict[str, object]:
    ours = {"VLLM_WEIGHTWIRE_ENGINE": "reference"} if engine.settings.backend is Backend.WEIGHTWIRE else {}
    return {"VLLM_SERVER_DEV_MODE": engine.settings.dev_mode, "VLLM_DISABLE_PYNCCL": False, **ours}
