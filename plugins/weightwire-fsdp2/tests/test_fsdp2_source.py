"""FSDP2 in a world of one, over gloo; several ranks run in integration_tests/trainers."""

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from weightwire import discovery
from weightwire.errors import ManifestError
from weightwire.options import Options
from weightwire_fsdp2 import claim, source
from weightwire_torch.sources import ModuleSource


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


def test_a_model_that_is_only_tensor_parallel_is_claimed_and_gathered_too(world):
    make, claims = factory()
    model = torch.nn.Linear(4, 2)
    whole = model.weight.detach().clone()
    model.weight = torch.nn.Parameter(distribute_tensor(model.weight.detach(), world, [Shard(1)]))
    assert claims(model) > 0
    assert torch.equal(make(model, Options()).gather(0)[0], whole)


def test_in_another_dtype_they_are_gathered_and_described_in_it(sharded):
    make, _ = factory()
    weights = make(sharded[0], Options(), dtype="bfloat16")
    assert {t.dtype for t in weights.manifest().tensors} == {"bfloat16"}
    gathered = weights.gather(0)[0]
    assert gathered.dtype == torch.bfloat16
    assert torch.equal(gathered, sharded[1]["0.weight"].bfloat16())


def test_a_layer_that_was_replaced_since_is_gathered_and_a_layer_more_is_refused(sharded, world):
    model, plain = sharded
    make, _ = factory()
    weights = make(model, Options())
    assert torch.equal(weights.gather(1)[0], plain["1.weight"])
    together = weights.together
    model[1] = fully_shard(torch.nn.Linear(3, 2), mesh=world)
    assert weights.manifest().names == tuple(plain)
    assert torch.equal(weights.gather(1)[0], model[1].weight.full_tensor())
    assert weights.together == together != ""
    model.append(torch.nn.Linear(2, 2))
    with pytest.raises(ManifestError, match=r"2 new: 2\.weight, 2\.bias"):
        weights.manifest()


def test_a_forward_between_two_rounds_is_no_change(sharded):
    model, plain = sharded
    make, _ = factory()
    weights = make(model, Options())
    weights.manifest()
    read = weights._last
    model(torch.zeros(1, 4)).sum().backward()
    weights.manifest()
    assert weights._last is read
    assert torch.equal(weights.gather(0)[0], plain["0.weight"])


def test_a_model_that_is_sharded_after_connecting_needs_another_session(world):
    model = torch.nn.Sequential(torch.nn.Linear(4, 3))
    weights = ModuleSource(model, Options())
    weights.manifest()
    fully_shard(model, mesh=world)
    with pytest.raises(ManifestError, match="is sharded, a DTensor") as caught:
        weights.manifest()
    assert "weightwire.connect() again" in caught.value.hint


def test_after_a_forward_without_a_backward_the_masters_are_sent_and_not_the_cast_copies(world):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    masters = [value.detach().clone() for value in model.parameters()]
    model = fully_shard(model, mesh=world, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    with torch.no_grad():
        model(torch.zeros(1, 4))
    make, _ = factory()
    weights = make(model, Options())
    gathered = [tensor for group in range(len(weights.manifest().groups)) for tensor in weights.gather(group)]
    assert all(torch.equal(one, other) for one, other in zip(gathered, masters, strict=True))
