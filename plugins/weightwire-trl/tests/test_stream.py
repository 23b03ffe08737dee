"""TRL's stream as a weight source."""

import pytest
import torch
from weightwire.deadlines import Deadline
from weightwire.errors import ManifestError
from weightwire.planes import SingleRank, WeightSource
from weightwire_testing.conformance import WeightSourceSuite
from weightwire_testing.model import TinyLlama
from weightwire_trl.stream import StreamSource

NAMES = ["embed.weight", "layers.0.a.weight", "layers.0.b.weight", "layers.1.a.weight", "head.weight"]


def rows(names=NAMES, fill=0.0):
    return iter([(name, torch.full((2, 3), fill + index)) for index, name in enumerate(names)])


class EachRound(StreamSource):
    """Given a stream at the start of each round, as TRL's trainers do."""

    def __init__(self, model):
        super().__init__()
        self._model = model
        self.begin(model.named_parameters())

    def gather(self, group):
        if group == 0:
            self.begin((name, parameter.detach()) for name, parameter in self._model.named_parameters())
        return super().gather(group)


class TestStreamSource(WeightSourceSuite):
    """The kit's own tests."""

    capabilities = frozenset({"changes"})
    expected_names = frozenset(TinyLlama().checkpoint_tensors())

    def make_source(self):
        self.model = TinyLlama(seed=1)
        return EachRound(self.model)

    @torch.no_grad()
    def change(self):
        for parameter in self.model.parameters():
            parameter.add_(1.0)


@pytest.fixture
def source():
    """One that has seen its first stream."""
    made = StreamSource()
    made.begin(rows())
    return made


def gathered(source):
    return [t for group in range(len(source.manifest().groups)) for t in source.gather(group)]


def test_it_is_a_weight_source_of_one_rank(source):
    assert isinstance(source, WeightSource)
    assert isinstance(source.ranks, SingleRank)


def test_nothing_is_known_before_the_first_stream():
    with pytest.raises(ManifestError, match="bind"):
        StreamSource().manifest()


def test_the_first_stream_is_described_layer_by_layer_and_sent_as_well(source):
    assert list(source.manifest().names) == NAMES
    assert source.manifest().groups == ((0, 1), (1, 3), (3, 4), (4, 5))
    assert [float(t[0, 0]) for t in gathered(source)] == [0, 1, 2, 3, 4]


def test_later_streams_are_taken_a_group_at_a_time(source):
    taken = []
    source.begin(taken.append(row[0]) or row for row in rows(fill=10))
    assert taken == []
    assert [float(t[0, 0]) for t in source.gather(0)] == [10]
    source.gather(1)
    assert taken == NAMES[:3]


def test_a_stream_with_another_tensor_is_refused_by_name_and_the_group_is_taken_all_the_same(source):
    source.begin(rows(["embed.weight", "layers.0.a.weight", "layers.0.c.weight", *NAMES[3:]]))
    source.gather(0)
    with pytest.raises(ManifestError, match=r"'layers\.0\.b\.weight' is due, and 'layers\.0\.c\.weight' came"):
        source.gather(1)
    assert [float(t[0, 0]) for t in source.gather(2)] == [3]


def test_a_stream_that_ends_early_is_refused(source):
    source.begin(rows(NAMES[:4]))
    for group in range(3):
        source.gather(group)
    with pytest.raises(ManifestError, match="the stream has ended"):
        source.gather(3)


def test_draining_takes_what_is_left(source):
    taken = []
    source.begin(taken.append(row[0]) or row for row in rows())
    source.gather(0)
    source.drain(Deadline.after(10))
    assert taken == NAMES


def test_draining_takes_no_longer_than_it_may(source):
    taken = []
    source.begin(taken.append(row[0]) or row for row in rows())
    source.drain(Deadline.after(0))
    assert len(taken) == 1


def test_empty_shards_are_refused_and_the_adapter_is_named():
    stream = iter([("a.weight", torch.empty(0)), ("b.weight", torch.ones(2))])
    with pytest.raises(ManifestError, match="pip install weightwire-deepspeed"):
        StreamSource().begin(stream)
    assert next(stream, None) is None


def test_packed_experts_are_refused_since_only_the_model_knows_their_names():
    stream = iter([("layers.0.mlp.experts.gate_up_proj", torch.ones(4, 6, 2))])
    with pytest.raises(ManifestError, match=r"transfer\.bind\(trainer\)"):
        StreamSource().begin(stream)
