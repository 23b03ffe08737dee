"""What is whole on every rank is sent from where it lies."""

from __future__ import annotations

import pytest
import torch
from weightwire.errors import ManifestError
from weightwire.options import Options
from weightwire_torch.sharding import Sharding, Unsharded
from weightwire_torch.sources import ModuleSource


class Halves(Unsharded):
    """A framework that keeps one half of every tensor, and frees the whole when it is told to."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def settle(self, model: torch.nn.Module) -> None:
        self.said.append("settle")

    def form(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(2 * tensor.shape[0], *tensor.shape[1:], dtype=tensor.dtype, device="meta")

    def whole(self, tensors):
        self.said.append(f"whole {len(tensors)}")
        return [torch.cat([tensor.detach(), -tensor.detach()]) for tensor in tensors]

    def release(self) -> None:
        self.said.append("release")


def test_a_form_has_shape_and_dtype_and_no_memory() -> None:
    form = Unsharded().form("w", torch.zeros(2, 3, dtype=torch.bfloat16))
    assert (form.is_meta, form.shape, form.dtype) == (True, (2, 3), torch.bfloat16)


def test_what_is_empty_has_no_form() -> None:
    with pytest.raises(ManifestError, match=r"'w' is empty"):
        Unsharded().form("w", torch.zeros(0, 3))


def test_whole_tensors_are_the_model_s_own_without_their_history() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    (found,) = Unsharded().whole([parameter])
    assert found.data_ptr() == parameter.data_ptr()
    assert not found.requires_grad


def test_a_source_settles_gathers_and_releases_a_group_at_a_time() -> None:
    halves = Halves()
    assert isinstance(halves, Unsharded)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, bias=False))
    source = ModuleSource(model, Options(), sharding=halves)
    assert [(meta.name, meta.shape) for meta in source.manifest().tensors] == [
        ("0.weight", (4, 2)), ("0.bias", (4,)), ("1.weight", (4, 2)),
    ]  # fmt: skip
    assert halves.said == ["settle"]
    gathered = [tensor for group in range(2) for tensor in source.gather(group)]
    source.release()
    assert halves.said[1:] == ["release", "settle", "whole 2", "release", "settle", "whole 1", "release"]
    assert torch.equal(gathered[2], torch.cat([model[1].weight, -model[1].weight]))


def test_the_protocol_is_what_unsharded_has() -> None:
    methods = {name for name in vars(Sharding) if not name.startswith("_")}
    assert methods == {"settle", "form", "traits", "whole", "release"} <= set(dir(Unsharded))
