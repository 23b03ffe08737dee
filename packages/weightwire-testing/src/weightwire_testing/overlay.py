"""Weightwire's server-side distributions, as this interpreter has them, in a directory for a server's ``PYTHONPATH``.

The server's environment stays as its lock made it, and two checkouts can use it at once. What is copied is the code
that runs here, installed or from a source tree, with the metadata that lets vLLM find the plugins; never its
dependencies, which vLLM's environment has.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from weightwire.errors import PluginError

DISTRIBUTIONS = ("weightwire", "weightwire-torch", "weightwire-vllm-engine", "weightwire-testing")

_LEFT_OUT = {"__pycache__", "envs"}
_METADATA = {"METADATA", "entry_points.txt"}


def ensure(root: Path) -> Path:
    """The directory for the code as it is now, made under *root* if it is not there yet.

    Raises:
        PluginError: a distribution is not installed.
    """
    files = {name: path for dist in DISTRIBUTIONS for name, path in _files(dist).items()}
    home = root / _digest(files)
    if not home.exists():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as scratch:
            _copy(files, Path(scratch) / "new")
            _put(Path(scratch) / "new", home)
    return home


def _files(name: str) -> dict[str, Path]:
    """What a distribution consists of: the place in the directory, and where it is now."""
    try:
        dist = distribution(name)
    except PackageNotFoundError as error:
        raise PluginError(f"{name} is not installed, and the server needs it.", hint=f"pip install {name}") from error
    spec = find_spec(name.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise PluginError(f"{name} is installed, but can't be imported.", hint=f"pip install --force-reinstall {name}")
    package = Path(spec.submodule_search_locations[0])
    inside = {path.relative_to(package.parent): path for path in package.rglob("*") if path.is_file()}
    found = {str(place): path for place, path in inside.items() if not _LEFT_OUT & set(place.parts)}
    for file in dist.files or ():
        if file.name in _METADATA and file.parent.name.endswith(".dist-info"):
            found[str(file)] = Path(str(dist.locate_file(file)))
    return found


def _digest(files: dict[str, Path]) -> str:
    whole = hashlib.sha256()
    for name, path in sorted(files.items()):
        whole.update(f"{name}\0{path.stat().st_size}\0".encode())
        whole.update(path.read_bytes())
    return whole.hexdigest()[:12]


def _copy(files: dict[str, Path], target: Path) -> None:
    for name, path in files.items():
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)


def _put(made: Path, home: Path) -> None:
    try:
        os.rename(made, home)  # noqa: PTH104 - atomic, and it fails where another process was first
    except OSError:
        if not home.exists():
            raise
