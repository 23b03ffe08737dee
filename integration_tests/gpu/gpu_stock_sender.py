"""vLLM's own sender: static functions up to 0.27, with the calls that its users make around them; an object since."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import requests
import torch

GIVE_UP = 120.0  # seconds a call may take
MODULE = "vllm.distributed.weight_transfer.nccl_engine"


def is_there() -> bool:
    """Whether a vLLM can be imported here."""
    try:
        import_module(MODULE)
    except ImportError:
        return False
    return True


def stock_sender(url: str) -> StockSender | StockTrainer:
    """The sender that the vLLM here has."""
    since_0_28 = hasattr(import_module(MODULE), "NCCLTrainerWeightTransferEngine")
    return StockTrainer(url) if since_0_28 else StockSender(url)


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


class Tensors:
    """What vLLM 0.28 and later call a weight source.

    Attributes:
        named: what the next round brings.
    """

    def __init__(self) -> None:
        """Nothing yet."""
        self.named: Sequence[tuple[str, torch.Tensor]] = ()

    def metadata(self) -> list[Any]:
        """Names, dtypes, and shapes."""
        from vllm.distributed.weight_transfer.base import ParamMeta  # noqa: PLC0415

        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self.named]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """A fresh pass."""
        return iter(self.named)


class StockTrainer:
    """A channel of vLLM's own, 0.28 and later, into one server: it makes all calls but `/pause` and `/resume`."""

    def __init__(self, url: str) -> None:
        """Open nothing yet: the size of the buffers belongs to the channel, and comes with the first push."""
        self._url = url
        self._tensors = Tensors()
        self._engine: Any = None

    def push(self, tensors: Sequence[tuple[str, torch.Tensor]], bucket_bytes: int) -> dict[str, float]:
        """One round with two buffers; seconds of its parts and of all."""
        self._tensors.named = tensors
        self._engine = self._engine or self._opened(bucket_bytes)
        took: dict[str, float] = {}
        began = last = time.monotonic()
        for phase, work in (("pause", self._pause), ("transfer", self._send), ("resume", self._resume)):
            work()
            took[phase], last = time.monotonic() - last, time.monotonic()
        return {**took, "total": last - began}

    def _opened(self, bucket_bytes: int) -> Any:
        from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient  # noqa: PLC0415

        module = import_module(MODULE)
        meeting = module.NCCLTrainerInitInfo(
            master_address="127.0.0.1",
            master_port=_free_port(),
            world_size=2,
            packed=True,
            packed_buffer_size_bytes=bucket_bytes,
            packed_num_buffers=2,
            rank=0,
        )
        client = HTTPVLLMWeightSyncClient(self._url, timeout=GIVE_UP)
        engine = module.NCCLTrainerWeightTransferEngine
        return engine.trainer_init(meeting, client=client, source=self._tensors)

    def _pause(self) -> None:
        _checked("pause", _post(f"{self._url}/pause", mode="keep"))

    def _send(self) -> None:
        self._engine.send_weights()
        torch.cuda.synchronize()

    def _resume(self) -> None:
        _checked("resume", _post(f"{self._url}/resume"))


def _post(url: str, body: dict[str, Any] | None = None, **query: str) -> int:
    return requests.post(url, json=body, params=query, timeout=GIVE_UP).status_code


def _checked(what: str, status: int) -> None:
    if status != requests.codes.ok:
        raise RuntimeError(f"{what} was answered with {status}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
