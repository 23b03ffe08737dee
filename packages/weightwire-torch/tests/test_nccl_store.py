"""The store at which stock workers find the communicator's id."""

from __future__ import annotations

import ctypes
import pickle
import socket
import sys
from datetime import timedelta
from types import ModuleType

import pytest
from torch._C._distributed_c10d import TCPStore
from weightwire.errors import ChannelError
from weightwire_torch.listening import Place
from weightwire_torch.nccl_rendezvous import KEY, pickled_unique_id
from weightwire_torch.nccl_store import Offer

UID = bytes(range(128))


@pytest.fixture
def vllms_class(monkeypatch) -> type[ctypes.Structure]:
    """The class that the pickle names, as vLLM has it."""

    class ncclUniqueId(ctypes.Structure):  # noqa: N801 - its name there
        _fields_ = (("internal", ctypes.c_byte * 128),)

    where = "vllm.distributed.device_communicators.pynccl_wrapper"
    ncclUniqueId.__module__ = where
    ncclUniqueId.__qualname__ = "ncclUniqueId"
    for depth in range(1, 5):
        monkeypatch.setitem(sys.modules, ".".join(where.split(".")[:depth]), ModuleType("m"))
    module = ModuleType(where)
    module.ncclUniqueId = ncclUniqueId  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, where, module)
    return ncclUniqueId


def read(address: str, port: int) -> bytes:
    return bytes(TCPStore(address, port, is_master=False, timeout=timedelta(seconds=10)).get(KEY))


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_a_worker_unpickles_the_id_that_was_offered(address, vllms_class) -> None:
    offer = Offer(Place(address), UID, world_size=3, timeout=10.0)
    found = pickle.loads(read(address, offer.port))
    assert isinstance(found, vllms_class)
    assert bytes(found) == UID


def test_only_the_address_that_was_named_is_listened_on() -> None:
    offer = Offer(Place("127.0.0.1"), UID, world_size=2, timeout=10.0)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", offer.port), timeout=5.0)


def test_an_address_of_another_machine_can_be_advertised() -> None:
    offer = Offer(Place("203.0.113.7"), UID, world_size=2, timeout=10.0)  # a router's, say
    assert read("127.0.0.2", offer.port) == pickled_unique_id(UID)


def test_a_port_that_is_taken_is_refused_in_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ChannelError, match=f"Can't listen on 127.0.0.1:{port}") as caught:
            Offer(Place("127.0.0.1", port), UID, world_size=2, timeout=10.0)
    assert "advertise" in caught.value.hint


def test_a_name_that_leads_nowhere_is_refused_in_words() -> None:
    with pytest.raises(ChannelError, match=r"Can't listen on no-such-host\.invalid"):
        Offer(Place("no-such-host.invalid"), UID, world_size=2, timeout=10.0)


def test_an_offer_that_was_withdrawn_can_not_be_read() -> None:
    offer = Offer(Place("127.0.0.1"), UID, world_size=2, timeout=10.0)
    offer.withdraw()
    offer.withdraw()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", offer.port), timeout=5.0)
