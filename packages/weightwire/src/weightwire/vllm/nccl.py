"""Which NCCL a server's workers load, and with which settings: from what ``/server_info`` tells of the machine."""

from __future__ import annotations

import re

from weightwire.vllm.server_info import Machine, ServerInfo

_WHEEL = re.compile(r"^nvidia-nccl-cu(\d+)==(\S+)$", re.MULTILINE)
_TORCH = re.compile(r"^torch==(\S+)$", re.MULTILINE)
_FILE = re.compile(r"libnccl\.so\.(\d+\.\d+\.\d+)$")
_READ_BY_A_TRANSPORT = re.compile(r"^((?:NCCL_\w+|CUDA_VISIBLE_DEVICES))=(.*)$", re.MULTILINE)


def version(server: ServerInfo) -> str:
    """The release of NCCL, such as ``"2.28.9"``; empty where it can't be told.

    vLLM loads the file that ``VLLM_NCCL_SO_PATH`` names, and only its name could tell the release; else torch's, which
    comes with a wheel. (Where both CUDA generations' wheels are installed, torch loads the one it was built for.)
    """
    named = server.vllm_env.vllm_nccl_so_path
    if named:
        found = _FILE.search(named)
        return found[1] if found else ""
    if not _lists_what_runs(server.system_env):
        return ""
    wheels = dict(_WHEEL.findall(server.system_env.pip_packages or ""))
    if len(wheels) > 1:
        return str(wheels.get((server.system_env.cuda_compiled_version or "").partition(".")[0], ""))
    return str(next(iter(wheels.values()), ""))


def variables(server: ServerInfo) -> dict[str, str]:
    """The variables of the server's environment that NCCL reads, and which GPUs it sees."""
    return dict(_READ_BY_A_TRANSPORT.findall(server.system_env.env_vars or ""))


def _lists_what_runs(machine: Machine) -> bool:
    """Whether the list of packages is that of the environment which the server runs in (see :class:`Machine`).

    Seen with 0.22.1 in a uv environment, started where another project's ``.venv`` lies: the list was the other's.
    """
    listed = _TORCH.search(machine.pip_packages or "")
    running = (machine.torch_version or "").partition("+")[0]
    return listed is not None and listed[1].partition("+")[0] == running
