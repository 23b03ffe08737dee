"""The unique id: what is read, and what is refused before it could do harm."""

from __future__ import annotations

import pickle

import pytest
from weightwire_testing.reference.stock_group import check_unique_id, read_unique_id
from weightwire_torch.nccl_rendezvous import pickled_unique_id

UID = b"GLOO:127.0.0.1:4711".ljust(128, b"\0")


class Evil:
    def __reduce__(self):
        return print, ("ran",)


def test_our_hand_made_pickle_is_read() -> None:
    assert read_unique_id(pickled_unique_id(UID)) == UID


def test_a_pickle_as_python_writes_it_is_read() -> None:
    module = b"vllm.distributed.device_communicators.pynccl_wrapper"
    framed = b"\x80\x04\x8c\x07_ctypes\x8c\x09_unpickle\x93"
    framed += b"\x8c" + bytes([len(module)]) + module + b"\x8c\x0cncclUniqueId\x93}C\x80" + UID + b"\x86\x86R."
    assert read_unique_id(framed) == UID


@pytest.mark.parametrize(
    ("pickled", "says"),
    [
        (b"", "does not hold a pickled"),
        (b"\x80\x03", "does not hold a pickled"),
        (pickle.dumps(Evil()), r"does not hold a builtins\.print"),
        (pickle.dumps(UID), "holds a bytes, not an ncclUniqueId"),
        (pickle.dumps({"a": 1}), "holds a dict"),
    ],
)
def test_anything_else_is_refused_and_never_run(pickled, says, capsys) -> None:
    with pytest.raises(ValueError, match=says):
        read_unique_id(pickled)
    assert capsys.readouterr().out == ""


def test_an_id_of_another_class_is_refused() -> None:
    other = pickled_unique_id(UID).replace(b"ncclUniqueId", b"ncclOtherId_")
    with pytest.raises(ValueError, match="ncclOtherId_"):
        read_unique_id(other)


def test_an_id_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="128 bytes, not 4"):
        check_unique_id(b"GLOO")
