"""A trainer by hand: raw calls and raw collectives, so that the reference engine is tested by nothing of ours."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import pytest
import requests
import torch
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.engine_wire import WIRE_VERSION
from weightwire.messages import Manifest, TensorMeta
from weightwire_testing.model import TinyLlama
from weightwire_testing.reference import ReferenceEngine
from weightwire_torch.gloo_group import GlooGroup

SECONDS = 60.0
COLLECTIVE_SECONDS = 3.0  # a sender whose receiver has failed sits in its collective, and a test waits for it to end
PICKLE = (
    b"\x80\x03c_ctypes\n_unpickle\ncvllm.distributed.device_communicators.pynccl_wrapper\nncclUniqueId\n}C\x80",
    b"\x86\x86R.",
)
Tensors = dict[str, torch.Tensor]
NEW: Tensors = TinyLlama(seed=2).checkpoint_tensors()


def pickled(unique_id: bytes) -> bytes:
    return PICKLE[0] + unique_id + PICKLE[1]


def rows(tensors: Tensors) -> dict[str, object]:
    return {
        "names": list(tensors),
        "dtype_names": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()],
        "shapes": [list(tensor.shape) for tensor in tensors.values()],
    }


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


class OurSender:
    """Rank 0 of a group of ours: that group's making is not the reference engine's, so neither is it tested here."""

    def __init__(self, world_size: int) -> None:
        self.group = GlooGroup.host(world_size=world_size, timeout=COLLECTIVE_SECONDS)
        self.port, self.world_size = self.group.port, world_size

    def join(self) -> None:
        self.group.join(Deadline.after(SECONDS))

    def send(self, flats: Iterable[torch.Tensor]) -> None:
        for flat in flats:
            self.group.broadcast(flat)

    def leave(self) -> None:
        self.group.close()


class Sender(OurSender):
    """Rank 0 of a stock group: hosts the store that names it, and begins with NCCL's warm-up."""

    def __init__(self, world_size: int) -> None:
        super().__init__(world_size)
        self.store = self.group.store
        self.unique_id = f"GLOO:127.0.0.1:{self.port}".encode().ljust(128, b"\0")

    def warm_up(self) -> None:
        self.group.all_reduce(torch.ones(1))


class Trainer:
    """Speaks to one engine, without a word of Weightwire's own client."""

    def __init__(self, engine: ReferenceEngine) -> None:
        self.engine = engine
        self.sender: Sender | OurSender | None = None
        self.digest = ""
        self.minor = int(engine.settings.version.split(".")[1])

    def post(self, path: str, body: object = None, *, rank: int = 0, **params: str) -> requests.Response:
        headers = {"X-data-parallel-rank": str(rank)}
        return requests.post(self.engine.url + path, json=body, params=params, headers=headers, timeout=SECONDS)

    def get(self, path: str, seconds: float = SECONDS) -> requests.Response:
        return requests.get(self.engine.url + path, timeout=seconds)

    def later(self, path: str, body: object = None) -> Call[requests.Response]:
        return Call(lambda: self.post(path, body), doing=path)

    def complete(self, *, rank: int = 0, **fields: object) -> dict:
        asked = {"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0} | fields
        reply = self.post("/v1/completions", asked, rank=rank)
        assert reply.status_code == 200, reply.text
        return reply.json()["choices"][0]

    def says(self) -> list[int]:
        return self.complete(return_token_ids=True)["token_ids"]

    def init(self, *, unique_id: bool = False, rank_offset: int = 1, **extra: object) -> requests.Response:
        """Stock: open the channel, over the store or by an id in the call."""
        sender = self.sender = Sender(rank_offset + self.engine.settings.world_size)
        sender.store.set("broadcast_from/0/0", pickled(sender.unique_id))
        place = {"rank_offset": rank_offset, "world_size": sender.world_size}
        where = {"master_address": "127.0.0.1", "master_port": sender.port}
        if unique_id:
            where = {"nccl_unique_id_b64": base64.b64encode(sender.unique_id).decode()}
        call = self.later("/init_weight_transfer_engine", {"init_info": where | place | extra})
        sender.join()
        sender.warm_up()
        return call.result(Deadline.after(SECONDS))

    def init_ours(self, tensors: Tensors, **changed: object) -> requests.Response:
        """Ours: open the channel for a manifest."""
        sender = self.sender = OurSender(1 + self.engine.settings.world_size)
        dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()]
        metas = [
            {"name": name, "dtype": dtype, "shape": list(tensor.shape)}
            for (name, tensor), dtype in zip(tensors.items(), dtypes, strict=True)
        ]
        self.digest = Manifest(msgspec.convert(metas, tuple[TensorMeta, ...]), ()).digest
        info = {
            "wire_version": WIRE_VERSION, "transport": "gloo", "address": "127.0.0.1", "port": sender.port,
            "rank_offset": 1, "world_size": sender.world_size, "timeout": SECONDS, "packed": True,
            "buffer_bytes": 100_000, "tensors": metas, "digest": self.digest,
        }  # fmt: skip
        call = self.later("/init_weight_transfer_engine", {"init_info": info | changed})
        if not changed.keys() - {"packed", "buffer_bytes", "timeout"}:
            sender.join()
        return call.result(Deadline.after(SECONDS))

    def update(self, tensors: Tensors, flats: Sequence[torch.Tensor] | None = None, **extra: object):
        """Stock: one update call beside its broadcasts."""
        sender, sent = self.sender, [raw(t) for t in tensors.values()] if flats is None else flats
        assert sender is not None
        call = self.later("/update_weights", {"update_info": rows(tensors) | extra})
        # Beside the call, as every client must: a receiver that fails leaves the sender in its collective.
        sending = Call(lambda: sender.send(sent), doing="sending")
        reply = call.result(Deadline.after(SECONDS))
        if reply.status_code == 200:
            sending.result(Deadline.after(SECONDS))
        return reply

    def ours(self, does: str, stop: int = 0, **changed: object) -> Call[requests.Response]:
        """Ours: one update call; the caller sends."""
        info = {"action": does, "round_id": "r", "start": 0, "stop": stop, "digest": self.digest} | changed
        return self.later("/update_weights", {"update_info": info})

    def start(self) -> requests.Response:
        return self.post("/start_weight_update", {} if self.minor < 25 else None)

    def finish(self, version: str = "") -> requests.Response:
        return self.post("/finish_weight_update", {"weight_version": version} if version else None)

    def push(self, tensors: Tensors, **extra: object) -> list[int]:
        """Stock: a whole update, in the calls of the release; the statuses."""
        if self.minor < 21:
            return [self.update(tensors, **extra).status_code]
        return [self.start().status_code, self.update(tensors, **extra).status_code, self.finish().status_code]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """The models are tiny, and the machine is shared with the engines under test."""
    torch.set_num_threads(1)


@pytest.fixture
def trainer(reference_engine) -> Iterator[Callable[..., Trainer]]:
    """Makes a trainer by hand for an engine of the given settings."""
    made: list[Trainer] = []

    def make(settings=None) -> Trainer:
        made.append(Trainer(reference_engine(settings)))
        return made[-1]

    yield make
    for one in made:
        if one.sender is not None:
            one.sender.leave()
