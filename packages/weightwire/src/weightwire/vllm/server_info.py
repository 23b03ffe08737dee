"""What ``GET /server_info?config_format=json`` tells of a server's set-up: the part of it that matters here.

The route dumps vLLM's whole configuration (25 KB) and, on the first call, gathers facts of the machine for a second
or two. Fields that a release lacks take the value they have where the feature does not exist.
"""

from __future__ import annotations

import msgspec


class WeightTransfer(msgspec.Struct, frozen=True):
    """``--weight-transfer-config``."""

    backend: str = "nccl"


class Parallel(msgspec.Struct, frozen=True):
    """Parallelism; ``world_size`` counts the workers of one replica (TP × PP); the last is not told by all releases."""

    world_size: int = 1
    data_parallel_size: int = 1
    data_parallel_external_lb: bool = False
    data_parallel_hybrid_lb: bool = False
    enable_eplb: bool = False
    is_moe_model: bool | None = None


class Model(msgspec.Struct, frozen=True):
    """The model; ``word_embeddings_untied_by_checkpoint`` (0.29 and later) is told apart from the config's word."""

    model: str = ""
    dtype: str = ""
    quantization: str | None = None
    word_embeddings_untied_by_checkpoint: bool = False


class Cache(msgspec.Struct, frozen=True):
    """The KV cache; a Mamba block size is set for models that have Mamba layers, and only for them."""

    mamba_block_size: int | None = None


class Device(msgspec.Struct, frozen=True):
    """Where the model lives: ``"cuda"``, ``"cpu"``; the first is none on platforms that place the inputs themselves."""

    device: str | None = ""
    device_type: str = ""


class Config(msgspec.Struct, frozen=True):
    """vLLM's configuration."""

    model_config: Model
    parallel_config: Parallel
    cache_config: Cache = Cache()
    device_config: Device = Device()
    weight_transfer_config: WeightTransfer | None = None
    lora_config: object = None
    speculative_config: object = None


class Environment(msgspec.Struct, frozen=True, rename="upper"):
    """The variables that vLLM declares. Ours announces itself with one (see :data:`weightwire.engine_wire.MARK`)."""

    vllm_disable_pynccl: bool = False
    vllm_nccl_so_path: str | None = None
    vllm_weightwire_engine: str = ""


class Machine(msgspec.Struct, frozen=True):
    """What vLLM's ``collect_env`` gathers: packages as ``pip list`` names them, variables, and torch and its CUDA.

    Torch's version is the running process's own. The packages need not be: in a uv environment without pip they come
    from ``uv pip list``, which looks at ``VIRTUAL_ENV``, or at the ``.venv`` where the server was started.
    """

    pip_packages: str | None = None
    env_vars: str | None = None
    torch_version: str | None = None
    cuda_compiled_version: str | None = None


class ServerInfo(msgspec.Struct, frozen=True):
    """The answer."""

    vllm_config: Config
    vllm_env: Environment = Environment()
    system_env: Machine = Machine()
