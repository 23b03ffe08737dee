"""How a stock vLLM worker, up to 0.29 the only way, is handed the id of an NCCL communicator.

The worker reads :data:`KEY` from the key-value store and unpickles an ``ncclUniqueId``, a ctypes structure of vLLM's
own. The pickle is written by hand here, so that the trainer's environment needs no vLLM; the class has had the same
path from 0.17.1 to 0.33.0.
"""

from __future__ import annotations

from weightwire.errors import ChannelError

KEY = "broadcast_from/0/0"
"""The store key of the first object that rank 0 broadcasts in vLLM's stateless process group. No prefix."""

UNIQUE_ID_BYTES = 128
"""Size of NCCL's ``ncclUniqueId``."""

# Protocol 3: call _ctypes._unpickle(ncclUniqueId, ({}, uid)); the instance has an empty __dict__.
_HEAD = (
    b"\x80\x03"
    b"c_ctypes\n_unpickle\n"
    b"cvllm.distributed.device_communicators.pynccl_wrapper\nncclUniqueId\n"
    b"}"  # the empty dict
    b"C\x80"  # 128 bytes follow
)
_TAIL = b"\x86\x86R."  # (dict, bytes), (class, state), call, stop


def pickled_unique_id(uid: bytes) -> bytes:
    """The value to store under :data:`KEY`.

    Args:
        uid: NCCL's unique id, 128 bytes.

    Raises:
        ChannelError: *uid* has another size.
    """
    if len(uid) != UNIQUE_ID_BYTES:
        raise ChannelError(f"An NCCL unique id has {UNIQUE_ID_BYTES} bytes; this one has {len(uid)}.")
    return _HEAD + uid + _TAIL
