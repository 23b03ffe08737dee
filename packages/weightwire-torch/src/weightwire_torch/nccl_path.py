"""Where a libnccl lies: the one that torch runs with, unless somebody names another."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

_MAPS = Path("/proc/self/maps")
_FILE = "libnccl.so.2"
_WITH_A_PATH = 6  # fields of a line in /proc/self/maps that names a file


def default_library() -> str:
    """The libnccl that torch has loaded, else the one of the wheel beside torch; empty where there is none.

    Mapped libraries come first, since they are the truth: ``LD_LIBRARY_PATH`` and ``LD_PRELOAD`` can put another in the
    place of the wheel's. Where several are mapped (one was loaded by its path), the wheel's is torch's.
    """
    wheel, mapped = _of_the_wheel(), _mapped()
    if wheel in mapped:
        return wheel
    return next(iter(mapped), wheel)


def named_in(maps: Iterable[str]) -> list[str]:
    """The libnccl files that lines in the form of ``/proc/self/maps`` name, each once."""
    paths = [fields[-1] for line in maps if len(fields := line.split(maxsplit=_WITH_A_PATH - 1)) == _WITH_A_PATH]
    return list(dict.fromkeys(path for path in map(str.strip, paths) if Path(path).name.startswith("libnccl.so")))


def _mapped() -> list[str]:
    if not _MAPS.exists():
        return []
    with _MAPS.open() as lines:
        return named_in(lines)


def _of_the_wheel() -> str:
    try:
        found = find_spec("nvidia.nccl")
    except ModuleNotFoundError:  # not even the namespace package is there
        return ""
    places = (found.submodule_search_locations if found is not None else None) or ()
    files = [Path(place) / "lib" / _FILE for place in places]
    return next((str(file) for file in files if file.is_file()), "")
