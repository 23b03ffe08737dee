"""The members of the workspace, importable and discoverable without being installed: for a machine without a network.

Discovery reads entry points, which only a distribution has; so each member gets the little that makes one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
GROUP = "weightwire"
VLLM_GROUP = "vllm.general_plugins"
ENGINE = "plugins/weightwire-vllm-engine"


def expose(directory: Path, *, extra: Sequence[str] = ()) -> list[str]:
    """Write metadata for every member into *directory*.

    Args:
        directory: made if it is missing.
        extra: more entry points of the group ``weightwire``, as ``name = module``.

    Returns:
        What belongs into ``PYTHONPATH``: the directory, and the sources of the members.
    """
    paths = [str(directory)]
    for file in sorted([*ROOT.glob("packages/*/pyproject.toml"), *ROOT.glob("plugins/*/pyproject.toml")]):
        project = tomllib.loads(file.read_text())["project"]
        points = project.get("entry-points", {}).get(GROUP, {})
        _write(directory, project["name"], project["version"], [f"{name} = {value}" for name, value in points.items()])
        paths.append(str(file.parent / "src"))
    if extra:
        _write(directory, "weightwire-rehearsal", "0", list(extra))
    return paths


def expose_engine(directory: Path) -> list[str]:
    """Write metadata of our engine plugin into *directory*, for a vLLM server that finds its plugins by it.

    Returns:
        What belongs into the server's ``PYTHONPATH``, behind vLLM itself.
    """
    members = [ROOT / place for place in ("packages/weightwire", "packages/weightwire-torch", ENGINE)]
    project = tomllib.loads((ROOT / ENGINE / "pyproject.toml").read_text())["project"]
    points = [f"{name} = {value}" for name, value in project["entry-points"][VLLM_GROUP].items()]
    _write(directory, project["name"], project["version"], points, group=VLLM_GROUP)
    return [str(directory), *(str(member / "src") for member in members)]


def _write(directory: Path, name: str, version: str, points: Sequence[str], *, group: str = GROUP) -> None:
    folder = directory / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if points:
        (folder / "entry_points.txt").write_text("\n".join([f"[{group}]", *points, ""]))
