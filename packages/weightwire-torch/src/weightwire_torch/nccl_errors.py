"""What NCCL says when something is wrong, and what to type then."""

from __future__ import annotations

from enum import IntEnum

from weightwire.errors import ChannelError


class Result(IntEnum):
    """``ncclResult_t``."""

    SUCCESS = 0
    UNHANDLED_CUDA_ERROR = 1
    SYSTEM_ERROR = 2
    INTERNAL_ERROR = 3
    INVALID_ARGUMENT = 4
    INVALID_USAGE = 5
    REMOTE_ERROR = 6
    IN_PROGRESS = 7


ONE_GPU = (
    "the trainer and a worker of the engine share a GPU, and NCCL takes one rank for each: give the server another one "
    "with CUDA_VISIBLE_DEVICES"
)
TWO_RELEASES = (
    "the two sides run different releases of NCCL: set VLLM_NCCL_SO_PATH for the server, or WEIGHTWIRE_NCCL_LIBRARY "
    "(the option nccl_library) for the trainer, to the other's libnccl.so.2"
)
NO_INTERFACE = "NCCL_SOCKET_IFNAME, or the option interface, names no interface of this machine; `ip link` lists them"
ASK_NCCL = "run both sides with NCCL_DEBUG=WARN, and look at the engine's log"

_KNOWN = {
    "duplicate gpu": ONE_GPU,
    "mismatched nccl version": TWO_RELEASES,
    "no socket interface": NO_INTERFACE,
}


def failed(doing: str, words: str, *, last: str = "") -> ChannelError:
    """The error for a call that NCCL refused, or for a communicator that broke.

    Args:
        doing: what was being done, as it should read after "while".
        words: NCCL's name for the result.
        last: the last thing that NCCL warned of; empty where it said nothing.
    """
    said = f"{words} ({last})" if last else words
    hint = next((hint for sign, hint in _KNOWN.items() if sign in said.lower()), ASK_NCCL)
    return ChannelError(f"NCCL failed while {doing}: {said}.", hint=hint)
