"""Seconds a phase for one shape: vLLM's own sender, up to 0.27 (its static functions), beside ours in the same run.

``python exp_stock_sender.py CONTEXT.json SERVER SHAPE``, with vLLM importable.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from typing import Any

import requests
import torch
from gpu_context import Context, Results, main
from gpu_models import shaped_model

MIB = 1 << 20
BUCKETS = (64 * MIB, 256 * MIB, 1024 * MIB)
ROUNDS = 4


class Answered(threading.Thread):
    """A call in flight."""

    def __init__(self, url: str, body: dict[str, Any]) -> None:
        """Send it."""
        super().__init__(daemon=True)
        self.seconds = 0.0
        self.status = 0
        self._url = url
        self._body = body
        self.start()

    def run(self) -> None:
        """Wait for the answer."""
        self.seconds, self.status = call(self._url, self._body)


def call(url: str, body: dict[str, Any] | None = None, **query: str) -> tuple[float, int]:
    """POST; seconds and status."""
    began = time.monotonic()
    status = requests.post(url, json=body, params=query, timeout=120.0).status_code
    return time.monotonic() - began, status


def stock(context: Context, results: Results) -> None:
    """Open vLLM's own group, and push a few rounds for each size of buckets."""
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine  # noqa: PLC0415

    server, shape = sys.argv[2:4]
    url = context.servers[server].url
    tensors = [(name, tensor.data) for name, tensor in shaped_model(shape, "cuda").named_parameters()]
    meeting = {"master_address": "127.0.0.1", "master_port": free_port(), "world_size": 2}
    joining = Answered(f"{url}/init_weight_transfer_engine", {"init_info": meeting | {"rank_offset": 1}})
    group = NCCLWeightTransferEngine.trainer_init(meeting)
    joining.join()
    nbytes = sum(tensor.nbytes for _, tensor in tensors)
    for bucket in BUCKETS:
        totals = [one_round(url, group, tensors, bucket=bucket) for _ in range(ROUNDS)]
        for number, phases in enumerate(totals):
            results.tell("vLLM's own", shape=shape, buckets=bucket // MIB, round=number, **phases)
        best = min(phases["total"] for phases in totals[1:])
        results.tell("vLLM's own, best", shape=shape, buckets=bucket // MIB, total=best, gb_per_s=nbytes / best / 1e9)


def one_round(url: str, group: Any, tensors: list[tuple[str, torch.Tensor]], *, bucket: int) -> dict[str, float]:
    """Pause, start, update beside the broadcast, finish, resume."""
    from vllm.distributed.weight_transfer.nccl_engine import (  # noqa: PLC0415
        NCCLTrainerSendWeightsArgs,
        NCCLWeightTransferEngine,
    )

    packing = {"packed": True, "packed_buffer_size_bytes": bucket, "packed_num_buffers": 2}
    update = {
        "names": [name for name, _ in tensors],
        "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in tensors],
        "shapes": [list(tensor.shape) for _, tensor in tensors],
    }
    began = time.monotonic()
    pause, _ = call(f"{url}/pause", mode="keep")
    begin, _ = call(f"{url}/start_weight_update", {})
    updating = Answered(f"{url}/update_weights", {"update_info": update | packing})
    sending = time.monotonic()
    NCCLWeightTransferEngine.trainer_send_weights(iter(tensors), NCCLTrainerSendWeightsArgs(group=group, **packing))
    torch.cuda.synchronize()
    sent = time.monotonic() - sending
    updating.join()
    commit, status = call(f"{url}/finish_weight_update")
    resume, _ = call(f"{url}/resume")
    if status != requests.codes.ok or updating.status != requests.codes.ok:
        raise RuntimeError(f"update answered {updating.status}, finish {status}")
    phases = {"pause": pause, "begin": begin, "transfer": updating.seconds, "commit": commit, "resume": resume}
    return {**phases, "total": time.monotonic() - began, "on_the_wire": sent}


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main(f"stock-sender-{sys.argv[3]}", stock)
