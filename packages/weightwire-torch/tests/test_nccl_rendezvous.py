"""The hand-made pickle that a stock worker reads."""

from __future__ import annotations

import ctypes
import pickle
import pickletools
import sys
import types

import pytest
from weightwire.errors import ChannelError
from weightwire_torch.nccl_rendezvous import KEY, pickled_unique_id

PATH = "vllm.distributed.device_communicators.pynccl_wrapper"
UID = bytes(range(128))


class ncclUniqueId(ctypes.Structure):  # noqa: N801 - the class's name on the wire
    """What vLLM declares."""

    _fields_ = [("internal", ctypes.c_byte * 128)]


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module tree of that name, with nothing but the class."""
    parts = PATH.split(".")
    for length in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:length]), types.ModuleType(".".join(parts[:length])))
    sys.modules[PATH].ncclUniqueId = ncclUniqueId
    monkeypatch.setattr(ncclUniqueId, "__module__", PATH)


@pytest.mark.usefixtures("vllm")
def test_a_worker_unpickles_the_id() -> None:
    loaded = pickle.loads(pickled_unique_id(UID))
    assert isinstance(loaded, ncclUniqueId)
    assert bytes(loaded.internal) == UID


@pytest.mark.usefixtures("vllm")
def test_it_is_what_pickling_the_structure_itself_comes_to() -> None:
    theirs = ncclUniqueId()
    ctypes.memmove(ctypes.byref(theirs), UID, 128)
    assert bytes(pickle.loads(pickle.dumps(theirs)).internal) == bytes(pickle.loads(pickled_unique_id(UID)).internal)


def test_nothing_but_that_one_class_is_named_in_it() -> None:
    named = [arg for op, arg, _ in pickletools.genops(pickled_unique_id(UID)) if op.name == "GLOBAL"]
    assert named == ["_ctypes _unpickle", f"{PATH} ncclUniqueId"]


def test_an_id_of_another_size_is_refused() -> None:
    with pytest.raises(ChannelError, match="127"):
        pickled_unique_id(UID[:-1])


def test_the_key_is_the_first_object_of_rank_0() -> None:
    assert KEY == "broadcast_from/0/0"
