"""A receiver in a process of its own: orders come in on stdin, answers go out on stdout, one JSON object a line."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Iterator

import msgspec
import torch
from weightwire.deadlines import Deadline
from weightwire.messages import PackGeometry, TensorMeta
from weightwire_torch.framing import raw
from weightwire_torch.gloo_group import GlooGroup
from weightwire_torch.receiver import receive
from weightwire_torch.ring import Ring


class Order(msgspec.Struct, frozen=True):
    """Join a group, receive windows, and leave.

    Attributes:
        windows: half-open ranges of *tensors*, one for each window to receive.
        fate: "live", "die" (as killed) or "freeze" (as stopped), after *packs* packs.
    """

    address: str
    port: int
    rank: int
    world_size: int
    timeout: float
    tensors: tuple[TensorMeta, ...]
    geometry: PackGeometry
    windows: tuple[tuple[int, int], ...]
    fate: str = "live"
    packs: int = 0


def obey(order: Order) -> Iterator[tuple[str, str]]:
    """Receive; yield names and digests."""
    group = GlooGroup.connect(
        order.address, order.port, rank=order.rank, world_size=order.world_size, timeout=order.timeout
    )
    try:
        group.join(Deadline.after(order.timeout))
        ring = Ring.fitting(order.tensors, order.geometry)
        for start, stop in order.windows:
            window = order.tensors[start:stop]
            for number, pack in enumerate(receive(group, window, geometry=order.geometry, ring=ring)):
                yield from ((name, digest(tensor)) for name, tensor in pack)
                if order.fate != "live" and number + 1 >= order.packs:
                    meet(order.fate)
    finally:
        group.close()


def meet(fate: str) -> None:
    """Go as a crash or a stopped process would."""
    if fate == "die":
        os._exit(9)
    os.kill(os.getpid(), signal.SIGSTOP)


def digest(tensor: torch.Tensor) -> str:
    """Name shape, dtype and bytes."""
    meta = f"{tuple(tensor.shape)} {tensor.dtype} "
    return meta + hashlib.blake2b(raw(tensor.contiguous()).numpy().tobytes(), digest_size=8).hexdigest()


def say(answer: object) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Obey until stdin ends."""
    say({"ready": os.getpid()})
    for line in sys.stdin:
        got: dict[str, str] = {}
        error = ""
        try:
            got.update(obey(msgspec.json.decode(line, type=Order)))
        except Exception as failure:  # noqa: BLE001 - the answer
            error = f"{type(failure).__name__}: {failure}"
        say({"got": got, "error": error})


if __name__ == "__main__":
    main()
