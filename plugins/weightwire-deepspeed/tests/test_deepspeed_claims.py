"""What can be said without DeepSpeed; its own engine runs in integration_tests/trainers."""

import sys
from types import ModuleType

import pytest
import torch
from weightwire import discovery
from weightwire.errors import ManifestError
from weightwire.options import Options
from weightwire_deepspeed.claim import CLAIM, claim_engine
from weightwire_deepspeed.partitions import Partitions
from weightwire_deepspeed.source import DeepSpeedSource


@pytest.fixture
def partitioned():
    """A module as ZeRO-3 leaves it: empty parameters that know their whole shape."""
    module = torch.nn.Linear(3, 2, bias=False)
    module.weight.data = torch.empty(0)
    module.weight.ds_id, module.weight.ds_shape = 0, torch.Size((2, 3))
    return module


def test_a_partitioned_module_is_claimed_and_a_plain_one_is_not(partitioned):
    assert claim_engine(partitioned) == CLAIM
    assert claim_engine(torch.nn.Linear(2, 2)) == 0
    assert claim_engine("a path") == 0


def test_the_manifest_has_the_whole_shape_without_a_gather(partitioned):
    (tensor,) = DeepSpeedSource(partitioned, Options()).manifest().tensors
    assert (tensor.name, tensor.shape, tensor.dtype) == ("weight", (2, 3), "float32")


def test_whether_it_is_gathered_at_the_moment_is_no_change_and_another_shape_is_refused(partitioned):
    source = DeepSpeedSource(partitioned, Options())
    first = source.manifest()
    read = source._last
    partitioned.weight.data = torch.zeros(2, 3)
    assert source.manifest() is first
    assert source._last is read
    partitioned.weight.ds_shape = torch.Size((4, 3))
    with pytest.raises(ManifestError, match=r"1 of another shape: weight \(\[4, 3\], was \[2, 3\]\)"):
        source.manifest()


def test_what_is_not_partitioned_is_sent_as_it_is():
    whole = torch.ones(2)
    (same,) = Partitions().whole([whole])
    assert same.data_ptr() == whole.data_ptr()


def test_releasing_twice_is_fine():
    partitions = Partitions()
    partitions.release()
    partitions.release()


def test_it_is_discovered():
    assert discovery.plugins().registry.owner("weight source", "deepspeed") == "weightwire-deepspeed"


def test_an_engine_of_pipeline_stages_is_refused(monkeypatch):
    class PipelineEngine(torch.nn.Module):
        """DeepSpeed's, as far as it can be told without DeepSpeed: by the place of its class."""

    module = ModuleType("deepspeed.runtime.pipe.engine")
    module.PipelineEngine = PipelineEngine
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(ManifestError, match="only its own stage's layers"):
        DeepSpeedSource(PipelineEngine(), Options())
