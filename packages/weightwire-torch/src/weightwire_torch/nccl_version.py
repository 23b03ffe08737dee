"""All ranks of a communicator must run one release of NCCL.

Two releases wait for each other for ever, without an error, while they join (seen with 2.28.9 and 2.30.7). So the
engine's release is compared with ours before anybody is told to join.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

import torch
from weightwire.errors import CompatibilityError
from weightwire.messages import EngineInfo

from weightwire_torch.nccl_library import NcclLibrary
from weightwire_torch.nccl_path import default_library

log = logging.getLogger(__name__)

_FIRST_CUDA = "12"


def ours(library: str = "") -> str:
    """The release that this process would join with, such as ``"2.28.9"``; needs no GPU.

    Args:
        library: the option `nccl_library`; empty for torch's own.

    Raises:
        ChannelError: there is no such library.
    """
    return NcclLibrary(library or default_library() or "libnccl.so.2").version


def check(version: str, engines: Sequence[EngineInfo]) -> None:
    """Refuse an engine that runs another release, and say aloud where that can't be told.

    Args:
        version: ours.
        engines: what is known of the engines.

    Raises:
        CompatibilityError: names both releases and both cures.
    """
    for info in engines:
        if not info.nccl_version:
            log.info("%s does not say which NCCL it runs; if it is not %s, joining will hang.", info.url, version)
        elif numbers(info.nccl_version) != numbers(version):
            raise CompatibilityError(
                f"The engine runs NCCL {info.nccl_version} and this process {version}; in one group they would wait "
                "for each other for ever.",
                hint=cures(version, info.nccl_version, cuda=torch.version.cuda or _FIRST_CUDA),
            ).at(engine=info.url)


def cures(version: str, engines_version: str, *, cuda: str) -> str:
    """What to type, on either side, and where to get a library.

    Args:
        version: ours.
        engines_version: the engine's.
        cuda: the CUDA release that torch was built for, such as ``"13.0"``.
    """
    major = cuda.split(".", maxsplit=1)[0]
    return (
        f"let the trainer load NCCL {engines_version}: set WEIGHTWIRE_NCCL_LIBRARY (the option nccl_library) to the "
        f"file nvidia/nccl/lib/libnccl.so.2 out of the wheel that `pip download --no-deps nvidia-nccl-cu{major}=="
        f"{engines_version}` brings (unzip it); or start the server with VLLM_NCCL_SO_PATH set to that of {version}"
    )


def numbers(version: str) -> tuple[int, ...]:
    """The first three numbers of a release, without suffixes such as ``.post1`` or ``-1``."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
