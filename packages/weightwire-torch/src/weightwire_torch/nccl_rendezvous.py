"""How a stock vLLM worker, up to 0.29 the only way, is handed the id of an NCCL communicator.

The worker reads :data:`KEY` from the key-value store and unpickles an ``ncclUniqueId``, a ctypes structure of vLLM's
own. The pickle is written by hand here, so that the trainer's environment needs no vLLM; the class has had the same
path from 0.17.1 to 0.33.0.
"""

from __future__ import annotations

import ipaddress
import socket
import sys

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


def meeting_point(uid: bytes) -> str:
    """Where NCCL told the members to meet, ``address:port``; empty where the id has another form.

    An id begins with eight bytes of its own and a ``sockaddr`` (``ncclBootstrapHandle``; seen from 2.28 to 2.29). The
    address is of the interface that NCCL chose, which need not be the one that the option ``advertise`` names.
    """
    family = int.from_bytes(uid[8:10], sys.byteorder)
    port = int.from_bytes(uid[10:12], "big")
    if family == socket.AF_INET:
        return f"{ipaddress.IPv4Address(uid[12:16])}:{port}"
    if family == socket.AF_INET6:
        return f"[{ipaddress.IPv6Address(uid[16:32])}]:{port}"
    return ""
