"""A dozen functions of a libnccl, loaded by its path.

``ctypes`` and not a binding package, since all ranks of a communicator need the same release of NCCL, and the trainer
must be able to join with the engine's, beside the one torch has loaded (docs/adr/0006). Signatures and numbers are
those of ``nccl.h``, the same from 2.14 to 2.30.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_void_p

from weightwire.errors import ChannelError, CompatibilityError

from weightwire_torch.nccl_errors import Result, failed
from weightwire_torch.nccl_rendezvous import UNIQUE_ID_BYTES

OLDEST = 21400
"""NCCL 2.14, the first with communicators that never block."""

_UINT8 = 1  # ncclUint8
_FLOAT32 = 7  # ncclFloat32
_SUM = 0  # ncclSum
_ROOT = 0  # the sender's rank
_CONFIG_MAGIC = 0xCAFEBEEF
_WIDE_CODES = 10000


class _UniqueId(ctypes.Structure):
    """``ncclUniqueId``; passed by value."""

    _fields_ = (("internal", c_ubyte * UNIQUE_ID_BYTES),)


class _Config(ctypes.Structure):
    """``ncclConfig_t`` as it was in 2.14.

    A newer library copies as many bytes as ``size`` says and takes its own defaults for what ``version`` did not have
    yet (``parseCommConfig`` in its init.cc; read in 2.18 to 2.30), so this form fits all of them.
    """

    _fields_ = (("size", c_size_t), ("magic", c_uint), ("version", c_uint), ("blocking", c_int))


_SIGNATURES: dict[str, tuple[type, tuple[type, ...]]] = {
    "ncclGetVersion": (c_int, (POINTER(c_int),)),
    "ncclGetErrorString": (c_char_p, (c_int,)),
    "ncclGetLastError": (c_char_p, (c_void_p,)),
    "ncclGetUniqueId": (c_int, (POINTER(_UniqueId),)),
    "ncclCommInitRankConfig": (c_int, (POINTER(c_void_p), c_int, _UniqueId, c_int, POINTER(_Config))),
    "ncclCommGetAsyncError": (c_int, (c_void_p, POINTER(c_int))),
    "ncclAllReduce": (c_int, (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p)),
    "ncclBroadcast": (c_int, (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p)),
    "ncclCommAbort": (c_int, (c_void_p,)),
}


class NcclLibrary:
    """One libnccl. Communicators are plain handles here; :mod:`weightwire_torch.nccl_communicator` keeps them.

    Every call that concerns a communicator may return before its work is done; :meth:`state` says when it is.
    """

    def __init__(self, path: str) -> None:
        """Load it.

        Args:
            path: a file, or a name that the system's loader finds.

        Raises:
            ChannelError: it can't be loaded, or is no NCCL.
            CompatibilityError: it is older than 2.14.
        """
        self.path = path
        self._call = _functions(path)
        self.version_code = self._version_code()
        if self.version_code < OLDEST:
            raise CompatibilityError(
                f"{path} is NCCL {release_of(self.version_code)}; 2.14 or newer is needed, which can give up a "
                "communicator that waits.",
                hint="pip install --upgrade the nvidia-nccl wheel that torch brought",
            )

    @property
    def version(self) -> str:
        """Its release, such as ``"2.28.9"``."""
        return release_of(self.version_code)

    def unique_id(self) -> bytes:
        """Make the id of a new communicator; NCCL listens at the address in it from now on.

        Raises:
            ChannelError: NCCL finds no network interface, for one.
        """
        uid = _UniqueId()
        self._checked("ncclGetUniqueId", byref(uid), doing="making the id of a communicator")
        return bytes(uid)

    def enter(self, unique_id: bytes, *, rank: int, world_size: int) -> int:
        """Begin to join a communicator on the calling thread's CUDA device, and return its handle.

        Raises:
            ChannelError: it can't even begin.
        """
        handle = c_void_p()
        config = _Config(ctypes.sizeof(_Config), _CONFIG_MAGIC, OLDEST, 0)
        uid = _UniqueId.from_buffer_copy(unique_id)
        self._checked(
            "ncclCommInitRankConfig",
            *(byref(handle), world_size, uid, rank, byref(config)),
            doing="joining the communicator",
        )
        return int(handle.value or 0)

    def state(self, handle: int) -> int:
        """How it stands: a :class:`Result`, ``SUCCESS`` when the last call is done, ``IN_PROGRESS`` until then.

        A newer NCCL may have results that have no name here.
        """
        error = c_int()
        self._checked("ncclCommGetAsyncError", handle, byref(error), doing="asking a communicator how it stands")
        return error.value

    def add_up(self, handle: int, pointer: int, *, stream: int) -> None:
        """Begin to sum one float32, in place, over all ranks.

        Raises:
            ChannelError: the communicator is broken.
        """
        self._checked(
            "ncclAllReduce", *(pointer, pointer, 1, _FLOAT32, _SUM, handle, stream), doing="beginning an all-reduce"
        )

    def broadcast(self, handle: int, pointer: int, *, nbytes: int, stream: int) -> None:
        """Begin to broadcast bytes of rank 0, in place.

        A receiver that counts elements of another dtype gets the same bytes: NCCL turns every broadcast into one of
        bytes before it plans it (``collTaskAppend`` in its enqueue.cc; read in 2.28).

        Raises:
            ChannelError: the communicator is broken.
        """
        self._checked(
            "ncclBroadcast", *(pointer, pointer, nbytes, _UINT8, _ROOT, handle, stream), doing="beginning a broadcast"
        )

    def abort(self, handle: int) -> None:
        """Stop what is under way on the device, and free the communicator. May take a while."""
        self._checked("ncclCommAbort", handle, doing="aborting the communicator")

    def words(self, result: int) -> str:
        """NCCL's name for *result*."""
        return _text(self._call["ncclGetErrorString"](result))

    def last_words(self) -> str:
        """The last thing that NCCL warned of in this process; empty for nothing."""
        return _text(self._call["ncclGetLastError"](None))

    def _checked(self, name: str, *arguments: object, doing: str) -> None:
        result = self._call[name](*arguments)
        if result not in {Result.SUCCESS, Result.IN_PROGRESS}:
            raise failed(doing, self.words(result), last=self.last_words())

    def _version_code(self) -> int:
        code = c_int()
        self._checked("ncclGetVersion", byref(code), doing="asking for the version")
        return code.value


def release_of(code: int) -> str:
    """``NCCL_VERSION_CODE`` as a release: 22809 is 2.28.9; up to 2.8 the major number stood in the thousands."""
    if code < _WIDE_CODES:
        return f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"


def _functions(path: str) -> dict[str, Callable[..., int]]:
    try:
        library = ctypes.CDLL(path)
        found = {name: getattr(library, name) for name in _SIGNATURES}
    except (OSError, AttributeError) as error:
        raise ChannelError(
            f"{path!r} is no NCCL that can be used: {error}.",
            hint="set the option nccl_library (WEIGHTWIRE_NCCL_LIBRARY) to a libnccl.so.2, or unset it for torch's",
        ) from error
    for name, (result, arguments) in _SIGNATURES.items():
        found[name].restype = result
        found[name].argtypes = arguments
    return found


def _text(said: object) -> str:
    return said.decode(errors="replace").strip() if isinstance(said, bytes) else ""
