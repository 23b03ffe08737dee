"""FSDP2 in a world of one, over gloo; several ranks run in integration_tests/trainers."""

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from weightwire import discovery
from weightwire.options import Options
from weightwire_fsdp2 import claim, source


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    store = torch.distributed.FileStore(str(tmp_path_factory.mktemp("world") / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.fixture
def sharded(world):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    plain = {name: value.detach().clone() for name, value in model.named_parameters()}
    for layer in model:
        fully_shard(layer, mesh=world)
    return fully_shard(model, mesh=world), plain


def factory():
    entry = discovery.plugins().registry.weight_sources["fsdp2"]
    return getattr(source, entry.factory.partition(":")[2]), getattr(claim, entry.claim.partition(":")[2])


def test_a_sharded_model_is_claimed_and_a_plain_one_is_not(sharded):
    _, claims = factory()
    assert claims(sharded[0]) > 0
    assert claims(torch.nn.Linear(2, 2)) == 0
    assert claims({}) == 0


def test_the_whole_tensors_are_gathered_group_by_group(sharded):
    model, plain = sharded
    make, _ = factory()
    weights = make(model, Options())
    manifest = weights.manifest()
    assert {t.name: t.shape for t in manifest.tensors} == {name: tuple(value.shape) for name, value in plain.items()}
    gathered = [tensor.clone() for group in range(len(manifest.groups)) for tensor in weights.gather(group)]
    for meta, tensor in zip(manifest.tensors, gathered, strict=True):
        assert torch.equal(tensor, plain[meta.name])
