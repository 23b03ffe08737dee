"""The C functions: against a stand-in that checks how it is called, and against torch's own where it needs no GPU."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from ctypes.util import find_library
from pathlib import Path

import pytest
import torch
from weightwire.deadlines import Deadline
from weightwire.errors import ChannelError, CompatibilityError
from weightwire_torch.broadcasting import Guard, all_well
from weightwire_torch.nccl_communicator import Communicator
from weightwire_torch.nccl_errors import ASK_NCCL, ONE_GPU, TWO_RELEASES, Result, failed
from weightwire_torch.nccl_library import NcclLibrary, release_of
from weightwire_torch.nccl_path import default_library, named_in
from weightwire_torch.nccl_rendezvous import meeting_point

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
WIRE = 0x77  # what the stand-in takes for a stream

compiled = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
bundled = pytest.mark.skipif(not default_library(), reason="this torch brings no NCCL")


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    def make(version: int = 22907) -> str:
        library = tmp_path_factory.mktemp("nccl") / "libnccl.so.2"
        source = Path(__file__).with_name("fake_nccl.c")
        command = [str(COMPILER), "-shared", "-fPIC", f"-DVERSION={version}", "-o", str(library), str(source)]
        subprocess.run(command, check=True, timeout=60)
        return str(library)

    return make


def guard() -> Guard:
    return Guard(Deadline.after(10.0), all_well)


def joined(path: str) -> tuple[NcclLibrary, Communicator]:
    library = NcclLibrary(path)
    inside = Communicator.enter(library, library.unique_id(), rank=1, world_size=3)
    inside.settle(guard(), "joining")
    return library, inside


@compiled
def test_every_function_is_called_as_the_header_says(build) -> None:
    library, inside = joined(build())
    one, memory = torch.zeros(1), torch.zeros(32, dtype=torch.uint8)
    inside.add_up(one.data_ptr(), WIRE)
    inside.settle(guard(), "summing")
    inside.broadcast(memory.data_ptr(), 31, stream=WIRE)
    inside.settle(guard(), "sending")
    assert one.item() == 1.0
    assert memory.tolist() == [0x5A] * 31 + [0]
    inside.close(Deadline.after(5.0))
    assert library.last_words() == "aborted"


@compiled
def test_an_error_that_comes_later_is_told_in_nccls_words(build) -> None:
    library, inside = joined(build())
    memory = torch.zeros(13, dtype=torch.uint8)
    inside.broadcast(memory.data_ptr(), 13, stream=WIRE)
    with pytest.raises(ChannelError, match=r"while sending: remote process exited") as caught:
        inside.settle(guard(), "sending")
    assert "NCCL_DEBUG=WARN" in caught.value.hint
    inside.close(Deadline.after(5.0))
    assert library.last_words() == "aborted"


@compiled
def test_a_wrong_call_is_refused_with_what_nccl_warned_of(build) -> None:
    library = NcclLibrary(build())
    with pytest.raises(ChannelError, match=r"joining the communicator: invalid argument \(the ranks\)"):
        library.enter(library.unique_id(), rank=2, world_size=2)


@compiled
def test_two_libraries_live_beside_each_other(build) -> None:
    assert NcclLibrary(build(22907)).version == "2.29.7"
    assert NcclLibrary(build(23007)).version == "2.30.7"


@compiled
def test_a_library_from_before_non_blocking_communicators_is_refused(build) -> None:
    with pytest.raises(CompatibilityError, match=r"is NCCL 2\.8\.4; 2\.14 or newer"):
        NcclLibrary(build(2804))


def test_what_is_no_nccl_is_refused_by_its_path(tmp_path) -> None:
    nothing = tmp_path / "libnccl.so.2"
    for write in (lambda: None, lambda: nothing.write_bytes(b"no library")):
        write()
        with pytest.raises(ChannelError, match=r"libnccl\.so\.2' is no NCCL") as caught:
            NcclLibrary(str(nothing))
        assert "WEIGHTWIRE_NCCL_LIBRARY" in caught.value.hint


def test_a_library_of_something_else_is_refused() -> None:
    libc = find_library("c")
    assert libc is not None
    with pytest.raises(ChannelError, match="is no NCCL"):
        NcclLibrary(libc)


@bundled
def test_torchs_own_library_says_its_release_and_makes_ids() -> None:
    library = NcclLibrary(default_library())
    assert library.version_code >= 22700  # torch 2.10's
    uid = library.unique_id()
    assert len(uid) == 128
    assert uid != library.unique_id()
    host, _, port = meeting_point(uid).rpartition(":")
    assert host
    assert int(port) > 0


@bundled
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_nccl_itself_says_so() -> None:
    library = NcclLibrary(default_library())
    with pytest.raises(ChannelError, match="unhandled cuda error"):
        library.enter(library.unique_id(), rank=0, world_size=2)


@bundled
def test_the_default_is_the_library_that_torch_has_loaded() -> None:
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert default_library() in named_in(maps.read_text().splitlines())


def test_libraries_are_found_in_the_memory_map() -> None:
    lines = [
        "7f00-7f01 r-xp 00000000 08:01 1  /a dir/nvidia/nccl/lib/libnccl.so.2",
        "7f01-7f02 rw-p 00000000 08:01 1  /a dir/nvidia/nccl/lib/libnccl.so.2",
        "7f02-7f03 r-xp 00000000 08:01 2  /opt/libnccl.so.2.30.7",
        "7f03-7f04 r-xp 00000000 08:01 3  /opt/libnccl-net.so",
        "7f04-7f05 rw-p 00000000 00:00 0 ",
        "7f05-7f06 rw-p 00000000 00:00 0  [heap]",
    ]
    assert named_in(lines) == ["/a dir/nvidia/nccl/lib/libnccl.so.2", "/opt/libnccl.so.2.30.7"]


@pytest.mark.parametrize(
    ("code", "release"), [(22809, "2.28.9"), (23007, "2.30.7"), (21400, "2.14.0"), (2804, "2.8.4")]
)
def test_version_codes_are_read_in_both_forms(code, release) -> None:
    assert release_of(code) == release


@pytest.mark.parametrize(
    ("last", "hint"),
    [
        ("Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000", ONE_GPU),
        ("Mismatched NCCL version detected : rank 0 version 22809 rank 1 version 23007", TWO_RELEASES),
        ("Call to connect failed : Connection refused", ASK_NCCL),
        ("", ASK_NCCL),
    ],
)
def test_what_nccl_says_leads_to_what_to_do(last, hint) -> None:
    error = failed("joining", "invalid usage", last=last)
    assert error.hint == hint
    assert last in error.message


def test_results_have_the_numbers_of_the_header() -> None:
    assert (Result.SUCCESS, Result.REMOTE_ERROR, Result.IN_PROGRESS) == (0, 6, 7)


@pytest.mark.parametrize(
    ("tail", "place"),
    [
        (b"\x02\x00\xa3\x63\xc0\x00\x02\x02", "192.0.2.2:41827"),
        (b"\x0a\x00\x00\x50" + bytes(4) + bytes(15) + b"\x01", "[::1]:80"),
        (b"\x77\x00\x00\x50", ""),
    ],
)
def test_an_id_tells_where_the_members_meet(tail, place) -> None:
    assert meeting_point((bytes(8) + tail).ljust(128, b"\0")) == place
