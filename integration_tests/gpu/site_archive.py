"""Several unpacked vLLMs as one small archive, for a host that nothing can be downloaded to.

``python site_archive.py pack TREE SITE_A SITE_B ...`` links the sites into TREE: a file that another has too is a hard
link, which tar keeps; flash attention, which differs from release to release in a few bytes, is what those are. ``tar``
and ``xz`` do the rest. ``python site_archive.py unpack TREE`` restores it there, and compiles what will be imported.
"""

from __future__ import annotations

import compileall
import filecmp
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

NEARLY_EQUAL = "_vllm_fa3_C.abi3.so"
DIFFERENCE = ".xor-of-"
LEFT_OUT = ("tekken_240911.json",)  # a tokenizer that no model here has
LEFT_OUT_FOLDERS = ("cutlass",)  # headers that only just-in-time compilers of other kernels read


def pack(tree: Path, sites: Sequence[Path]) -> None:
    """Link *sites* into *tree*."""
    for number, site in enumerate(sites):
        for path in files(site):
            target = tree / site.name / path.relative_to(site)
            target.parent.mkdir(parents=True, exist_ok=True)
            twins = [tree / other.name / path.relative_to(site) for other in sites[:number]]
            if path.name == NEARLY_EQUAL and twins and twins[0].stat().st_size == path.stat().st_size:
                xored(path, twins[0]).tofile(f"{target}{DIFFERENCE}{sites[0].name}")
                continue
            os.link(next((twin for twin in twins if same(path, twin)), path), target, follow_symlinks=False)


def unpack(tree: Path) -> None:
    """Restore what was packed as a difference, and compile."""
    for path in tree.glob(f"**/*{DIFFERENCE}*"):
        name, _, first = path.name.rpartition(DIFFERENCE)
        target = path.with_name(name)
        inner = Path(*target.relative_to(tree).parts[1:])
        xored(path, tree / first / inner).tofile(target)
        path.unlink()
    compileall.compile_dir(str(tree), quiet=2, workers=0)


def files(site: Path) -> Iterator[Path]:
    """All that is packed of one site."""
    for folder, folders, names in os.walk(site):
        folders[:] = [name for name in folders if name not in LEFT_OUT_FOLDERS and name != "__pycache__"]
        yield from (Path(folder) / name for name in names if name not in LEFT_OUT)


def same(path: Path, twin: Path) -> bool:
    """Whether two files are one."""
    return twin.is_file() and filecmp.cmp(path, twin, shallow=False)


def xored(path: Path, other: Path) -> np.ndarray:
    """How two files of one size differ; what one is, by the other and that."""
    return np.fromfile(path, np.uint8) ^ np.fromfile(other, np.uint8)


if __name__ == "__main__":
    if sys.argv[1] == "pack":
        pack(Path(sys.argv[2]), [Path(word) for word in sys.argv[3:]])
    else:
        unpack(Path(sys.argv[2]))
