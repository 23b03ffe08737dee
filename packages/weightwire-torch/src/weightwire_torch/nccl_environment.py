"""What may differ between the two sides so that NCCL hangs, or refuses, without a word of why.

Only what an engine says of itself can be compared (:attr:`~weightwire.messages.EngineInfo.variables`); nothing is asked
here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

import torch
from weightwire.errors import CompatibilityError, ConfigurationError
from weightwire.messages import EngineInfo

log = logging.getLogger(__name__)

INTERFACE = "NCCL_SOCKET_IFNAME"
VISIBLE = "CUDA_VISIBLE_DEVICES"
ID_OVERRIDE = "NCCL_COMM_ID"

MUST_AGREE = (
    "NCCL_ALGO",
    "NCCL_BUFFSIZE",
    "NCCL_COLLNET_ENABLE",
    "NCCL_CROSS_NIC",
    "NCCL_CUMEM_ENABLE",
    "NCCL_IB_DISABLE",
    "NCCL_LL128_BUFFSIZE",
    "NCCL_LL_BUFFSIZE",
    "NCCL_MNNVL_ENABLE",
    "NCCL_NET",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_PROTO",
    "NCCL_PXN_DISABLE",
    "NCCL_RUNTIME_CONNECT",
    "NCCL_SHM_DISABLE",
)
"""What each rank decides for itself and all must decide alike: algorithms, transports, sizes of buffers."""


def use_interface(interface: str) -> None:
    """Let NCCL listen on *interface*, unless the environment names another one already.

    NCCL reads the variable once in a process, so this has no effect where torch has used the same library before.
    """
    if interface:
        os.environ.setdefault(INTERFACE, interface)


def check(engines: Sequence[EngineInfo], device: torch.device) -> None:
    """Compare this process's settings with what each engine says of its own.

    Raises:
        ConfigurationError: a setting of this process breaks every group, or the GPU is the engine's too.
        CompatibilityError: both sides set a variable, and to different values.
    """
    if ID_OVERRIDE in os.environ:
        raise ConfigurationError(
            f"{ID_OVERRIDE} is set: NCCL would use it instead of the id that the workers are given.",
            hint=f"unset {ID_OVERRIDE} in the trainer's environment",
        )
    for info in engines:
        compare(os.environ, info)
        if is_local(info.url):
            _refuse_one_gpu(info, device)


def compare(here: Mapping[str, str], info: EngineInfo) -> None:
    """Compare the variables that must agree.

    Args:
        here: this process's environment.
        info: the engine; nothing is compared where it does not tell its variables.

    Raises:
        CompatibilityError: one differs.
    """
    there = info.variables
    if not there:
        return
    for name in MUST_AGREE:
        ours, theirs = here.get(name), there.get(name)
        if ours is not None and theirs is not None and ours.lower() != theirs.lower():
            raise CompatibilityError(
                f"{name} is {ours!r} here and {theirs!r} in the engine; the ranks of one group must agree on it.",
                hint=f"set {name} alike on both sides, or unset it on both",
            ).at(engine=info.url)
        if (ours is None) != (theirs is None):
            log.warning("%s is %r here and %r in the engine at %s; if joining hangs, set it alike.", *_said(name, info))


def gpus_of(variables: Mapping[str, str], workers: int) -> tuple[str, ...]:
    """The GPUs that the first *workers* workers of an engine take, as its environment names them: indices or UUIDs."""
    visible = variables.get(VISIBLE)
    if visible is None:
        return tuple(str(index) for index in range(workers))
    return tuple(part.strip() for part in visible.split(",") if part.strip())[:workers]


def is_local(url: str) -> bool:
    """Whether *url* leads to this machine by loopback."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _said(name: str, info: EngineInfo) -> tuple[object, ...]:
    return name, os.environ.get(name), info.variables.get(name), info.url


def _refuse_one_gpu(info: EngineInfo, device: torch.device) -> None:
    """Refuse by UUID, warn by index: an index means another GPU inside a container."""
    if device.type != "cuda" or not info.variables:
        return
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    mine = _physical(device)
    for gpu in gpus_of(info.variables, info.world_size):
        if len(gpu) > len("GPU-") and uuid.startswith(gpu):
            raise ConfigurationError(
                f"The trainer and the engine use one GPU, {uuid}; NCCL takes one rank for each.",
                hint=f"give one of them another GPU: {VISIBLE}=… in its environment",
            ).at(engine=info.url)
        if gpu == mine:
            log.warning("GPU %s seems to be the trainer's and a worker's of %s: NCCL would refuse it.", gpu, info.url)


def _physical(device: torch.device) -> str:
    visible = gpus_of(os.environ, torch.cuda.device_count())
    index = device.index or 0
    return visible[index] if index < len(visible) else ""
