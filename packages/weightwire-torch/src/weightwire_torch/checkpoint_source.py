"""The weights of a Hugging Face checkpoint: a directory of safetensors, with or without a sharded index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from weightwire.checkpoint import read_index
from weightwire.messages import Manifest
from weightwire.options import Options
from weightwire.planes import RankGroup, SingleRank

from weightwire_torch.manifest import checked, groups_by_layer


class CheckpointSource:
    """Implements :class:`~weightwire.planes.WeightSource`, and ``Releases``.

    Tensors are mapped from the files, a layer at a time.
    """

    lasting = True
    """Each mapping lives as long as its tensors."""

    def __init__(self, path: str | Path, options: Options) -> None:
        """Read the headers of the files; no tensor.

        Args:
            path: the checkpoint.
            options: the session's; none concerns a checkpoint.

        Raises:
            ConfigurationError: there is no checkpoint, or it is incomplete or damaged.
        """
        del options
        self.ranks: RankGroup = SingleRank()
        self._index = read_index(Path(path))
        self._manifest: Manifest | None = None
        self._open: dict[str, safe_open] = {}

    def manifest(self) -> Manifest:
        """Describe what the files hold, in the order of the index.

        Raises:
            ManifestError: the files hold nothing.
        """
        if self._manifest is None:
            tensors = self._index.tensors
            groups = groups_by_layer([meta.name for meta in tensors])
            self._manifest = checked(Manifest(tensors=tensors, groups=groups))
        return self._manifest

    def gather(self, group: int) -> Sequence[torch.Tensor]:
        """The tensors of one group, mapped from their files."""
        start, stop = self.manifest().groups[group]
        names = [meta.name for meta in self.manifest().tensors[start:stop]]
        found: dict[str, torch.Tensor] = {}
        for file in dict.fromkeys(self._index.files[name] for name in names):
            here = [name for name in names if self._index.files[name] == file]
            tensors = self._opened(file)
            found.update((name, tensors.get_tensor(name)) for name in here)  # type: ignore[no-untyped-call]
        return [found[name] for name in names]

    def release(self) -> None:
        """Close the files: by the next round others may lie there."""
        self._open.clear()

    def _opened(self, file: str) -> safe_open:
        """The file, opened once a round: with each opening its whole header is read."""
        if file not in self._open:
            self._open[file] = safe_open(self._index.directory / file, framework="pt")
        return self._open[file]
