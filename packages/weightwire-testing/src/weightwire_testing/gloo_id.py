"""The stand-in for an NCCL unique id: 128 bytes that name the sender's key-value store.

A real ``ncclUniqueId`` holds the address of rank 0's listening socket; so does this one. The two sides of the stock
shim need to agree on nothing else: the group that meets there is a :class:`~weightwire_torch.gloo_group.GlooGroup`.
"""

from __future__ import annotations

import re

UNIQUE_ID_BYTES = 128
"""Size of NCCL's ``ncclUniqueId``."""

_MAGIC = b"GLOO:"
_FORM = re.compile(rb"GLOO:([^\0]+):(\d+)\0*")


def encode(host: str, port: int) -> bytes:
    """The id of the group that meets at *host* and *port*.

    Raises:
        ValueError: the address is too long for it.
    """
    raw = _MAGIC + f"{host}:{port}".encode("ascii")
    if len(raw) > UNIQUE_ID_BYTES:
        raise ValueError(f"{host!r} is too long for an id of {UNIQUE_ID_BYTES} bytes.")
    return raw.ljust(UNIQUE_ID_BYTES, b"\0")


def decode(unique_id: bytes) -> tuple[str, int]:
    """Where the group with this id meets: host and port.

    Raises:
        ValueError: it is no id of this kind (a real NCCL id, for one).
    """
    found = _FORM.fullmatch(unique_id) if len(unique_id) == UNIQUE_ID_BYTES else None
    if found is None:
        raise ValueError(
            f"Not an id of the gloo stand-in for NCCL: {len(unique_id)} bytes, {unique_id[:16]!r}... The trainer must "
            "use the data plane 'stock-shim'."
        )
    return found[1].decode("ascii"), int(found[2])
