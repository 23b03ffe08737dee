"""What can be sent, and how it is grouped."""

from __future__ import annotations

import pytest
import torch
from weightwire.errors import ManifestError
from weightwire.messages import ITEM_BYTES
from weightwire_torch.dtypes import torch_dtype, wire_name
from weightwire_torch.manifest import groups_by_layer, manifest_of


def test_every_dtype_on_the_wire_has_the_size_that_torch_gives_it() -> None:
    for name, size in ITEM_BYTES.items():
        assert torch.empty(1, dtype=torch_dtype(name)).element_size() == size
        assert wire_name(torch_dtype(name)) == name


def test_a_manifest_keeps_order_shapes_and_dtypes() -> None:
    manifest = manifest_of([("a", torch.zeros(2, 3, dtype=torch.bfloat16)), ("b", torch.zeros(()))])
    assert [(t.name, t.dtype, t.shape) for t in manifest.tensors] == [("a", "bfloat16", (2, 3)), ("b", "float32", ())]
    assert manifest.nbytes == 16


def test_only_plain_floats_are_cast() -> None:
    named = [
        ("weight", torch.zeros(2)),
        ("scaled", torch.zeros(2).to(torch.float8_e4m3fn)),
        ("index", torch.zeros(2, dtype=torch.int64)),
    ]
    dtypes = [t.dtype for t in manifest_of(named, dtype="bfloat16").tensors]
    assert dtypes == ["bfloat16", "float8_e4m3fn", "int64"]


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (["embed", "layers.0.a", "layers.0.b", "layers.1.a", "norm", "head"], [(0, 1), (1, 3), (3, 4), (4, 6)]),
        (["h.0.experts.0.w", "h.0.experts.1.w", "h.1.experts.0.w"], [(0, 2), (2, 3)]),
        (["vision.0.a", "text.0.a"], [(0, 1), (1, 2)]),
        (["layers.0.a", "layers.1.a", "layers.0.b"], [(0, 1), (1, 2), (2, 3)]),
        (["a"], [(0, 1)]),
        ([], []),
    ],
)
def test_groups_are_cut_where_the_layer_changes(names: list[str], groups: list[tuple[int, int]]) -> None:
    assert list(groups_by_layer(names)) == groups


class FlatParameter(torch.nn.Parameter):
    """What FSDP1 leaves in a module, by its name."""


def partitioned() -> torch.Tensor:
    parameter = torch.nn.Parameter(torch.empty(0))
    parameter.ds_id = 3  # type: ignore[attr-defined] # what DeepSpeed sets
    return parameter


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.empty(2, 2, device="meta"), "meta device"),
        (torch.empty(0, 4), "is empty"),
        (torch.zeros(2, dtype=torch.complex64), "complex64"),
        (torch.zeros(2, 2).to_sparse(), "not dense"),
        (partitioned(), "pip install weightwire-deepspeed"),
        (FlatParameter(torch.zeros(2)), "fully_shard"),
    ],
    ids=["meta", "empty", "dtype", "sparse", "deepspeed", "fsdp1"],
)
def test_what_can_not_be_sent_is_refused_by_name(tensor: torch.Tensor, text: str) -> None:
    with pytest.raises(ManifestError, match=r"layers\.0\.w") as caught:
        manifest_of([("fine", torch.zeros(1)), ("layers.0.w", tensor)])
    assert text in str(caught.value)


def test_a_sharded_tensor_is_refused_with_the_package_that_gathers_it() -> None:
    from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415 - slow to import
    from torch.distributed.tensor import DTensor, Shard  # noqa: PLC0415
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh = DeviceMesh("cpu", [0, 1])
        sharded = torch.nn.Parameter(DTensor.from_local(torch.zeros(2, 2), mesh, [Shard(0)]))
        with pytest.raises(ManifestError, match=r"pip install weightwire-fsdp2"):
            manifest_of([("w", sharded)])
    finally:
        torch.distributed.destroy_process_group()


def test_an_empty_manifest_and_a_name_twice_are_refused() -> None:
    with pytest.raises(ManifestError, match="no tensors"):
        manifest_of([])
    with pytest.raises(ManifestError, match="'a' is there twice"):
        manifest_of([("a", torch.zeros(1)), ("a", torch.zeros(1))])
