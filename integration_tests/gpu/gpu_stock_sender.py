"""vLLM's own sender, up to 0.27: its static functions, with the calls that its users make around them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import requests
import torch

GIVE_UP = 120.0  # seconds a call may take


def is_there() -> bool:
    """Whether the vLLM that can be imported here has that sender."""
    try:
        from vllm.distributed.weight_transfer import nccl_engine  # noqa: PLC0415
    except ImportError:
        return False
    return hasattr(nccl_engine, "NCCLTrainerSendWeightsArgs")


class Answered(threading.Thread):
    """A call in flight."""

    def __init__(self, url: str, body: dict[str, Any]) -> None:
        """Send it."""
        super().__init__(daemon=True)
        self.status = 0
        self._url = url
        self._body = body
        self.start()

    def run(self) -> None:
        """Wait for the answer."""
        self.status = _post(self._url, self._body)

    def done(self) -> None:
        """Return when it was answered.

        Raises:
            RuntimeError: it failed.
        """
        self.join()
        _checked(self._url, self.status)


class StockSender:
    """A channel of vLLM's own into one server."""

    def __init__(self, url: str) -> None:
        """Open it."""
        from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine  # noqa: PLC0415

        self._url = url
        meeting = {"master_address": "127.0.0.1", "master_port": _free_port(), "world_size": 2}
        joining = Answered(f"{url}/init_weight_transfer_engine", {"init_info": meeting | {"rank_offset": 1}})
        self._group = NCCLWeightTransferEngine.trainer_init(meeting)
        joining.done()

    def push(self, tensors: Sequence[tuple[str, torch.Tensor]], bucket_bytes: int) -> dict[str, float]:
        """One round with two buffers; seconds of each call and of all."""
        packing = {"packed": True, "packed_buffer_size_bytes": bucket_bytes, "packed_num_buffers": 2}
        took: dict[str, float] = {}
        began = last = time.monotonic()
        for phase, work in (
            ("pause", lambda: self._call("pause", mode="keep")),
            ("begin", lambda: self._call("start_weight_update", {})),
            ("transfer", lambda: self._transfer(tensors, packing)),
            ("commit", lambda: self._call("finish_weight_update")),
            ("resume", lambda: self._call("resume")),
        ):
            work()
            took[phase], last = time.monotonic() - last, time.monotonic()
        return {**took, "total": last - began}

    def _transfer(self, tensors: Sequence[tuple[str, torch.Tensor]], packing: dict[str, Any]) -> None:
        from vllm.distributed.weight_transfer.nccl_engine import (  # noqa: PLC0415
            NCCLTrainerSendWeightsArgs,
            NCCLWeightTransferEngine,
        )

        names = {
            "names": [name for name, _ in tensors],
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in tensors],
            "shapes": [list(tensor.shape) for _, tensor in tensors],
        }
        updating = Answered(f"{self._url}/update_weights", {"update_info": names | packing})
        arguments = NCCLTrainerSendWeightsArgs(group=self._group, **packing)
        NCCLWeightTransferEngine.trainer_send_weights(iter(tensors), arguments)
        torch.cuda.synchronize()
        updating.done()

    def _call(self, route: str, body: dict[str, Any] | None = None, **query: str) -> None:
        _checked(route, _post(f"{self._url}/{route}", body, **query))


def _post(url: str, body: dict[str, Any] | None = None, **query: str) -> int:
    return requests.post(url, json=body, params=query, timeout=GIVE_UP).status_code


def _checked(what: str, status: int) -> None:
    if status != requests.codes.ok:
        raise RuntimeError(f"{what} was answered with {status}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
