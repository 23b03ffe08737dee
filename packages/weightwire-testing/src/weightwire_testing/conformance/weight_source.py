"""The contract of :class:`weightwire.planes.WeightSource`, as tests.

::

    class TestMySource(WeightSourceSuite):
        def make_source(self):
            return MySource(model())
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.messages import ITEM_BYTES, Manifest
from weightwire.planes import RankGroup, WeightSource

from weightwire_testing.conformance.channel import SECONDS
from weightwire_testing.conformance.checks import expect, expect_true
from weightwire_testing.conformance.suite import Suite, requires
from weightwire_testing.model import fingerprint


class WeightSourceSuite(Suite):
    """Run it over a weight source; of many ranks, on each of them, or on one whose model is not sharded.

    Attributes:
        expected_names: the names of a checkpoint, in any order; empty where none is at hand.
    """

    subject = "weight source"
    offers: ClassVar[dict[str, str]] = {
        "frees_storage": "storage that it does not own is freed between gathers; `free_storage` does so",
        "changes": "`change` makes the model's weights others, as an optimizer step would",
    }
    expected_names: ClassVar[frozenset[str]] = frozenset()

    def make_source(self) -> WeightSource:
        """A source, fresh. To be overridden."""
        raise NotImplementedError

    def free_storage(self) -> None:
        """Free what a sharded model would free after a gather. To be overridden with ``frees_storage``."""
        raise NotImplementedError

    def change(self) -> None:
        """Make the model's weights others, in whatever way its trainer does. To be overridden with ``changes``."""
        raise NotImplementedError

    def setup_method(self) -> None:
        """Make the source."""
        self.source = self.make_source()

    # Describing.

    def test_it_is_a_weight_source(self) -> None:
        """It has the members of the Protocol, and a rank group that knows its place."""
        expect_true(isinstance(self.source, WeightSource), "the source has `ranks`, `manifest` and `gather`")
        ranks = self.source.ranks
        expect_true(isinstance(ranks, RankGroup), "`ranks` has the members of planes.RankGroup")
        expect_true(0 <= ranks.rank < ranks.size, f"rank {ranks.rank} is one of {ranks.size}")

    def test_the_manifest_needs_no_other_rank(self) -> None:
        """It is made on one rank alone, on a thread: a collective would wait for the others for ever."""
        manifest = Call(self.source.manifest, doing="making a manifest alone").result(Deadline.after(SECONDS))
        expect_true(manifest.tensors, "the manifest names tensors")

    def test_the_manifest_is_the_same_every_time(self) -> None:
        """Also from another source over the same model, and after a gather."""
        first = self.source.manifest()
        self.source.gather(0)
        expect(self.source.manifest().digest, first.digest, "the digest after a gather")
        expect(self.make_source().manifest().digest, first.digest, "the digest from another source")

    def test_names_are_unique_and_of_a_checkpoint(self) -> None:
        """No wrapper's prefix is left in them."""
        names = self.source.manifest().names
        expect(sorted(set(names)), sorted(names), "the names")
        for prefix in ("module.", "_orig_mod.", "_fsdp_wrapped_module."):
            expect([name for name in names if prefix in name], [], f"names with {prefix!r}")
        if self.expected_names:
            expect(sorted(names), sorted(self.expected_names), "the names")

    def test_tensors_have_content_and_dtypes_that_travel(self) -> None:
        """No empty tensor, no dtype the wire can't name."""
        for meta in self.source.manifest().tensors:
            expect_true(meta.numel > 0, f"{meta.name} holds something")
            expect_true(meta.dtype in ITEM_BYTES, f"{meta.name} has a dtype that can be sent: {meta.dtype}")

    def test_groups_cover_the_tensors_in_order(self) -> None:
        """Without a gap, an overlap, or an empty group."""
        manifest = self.source.manifest()
        at = 0
        for start, stop in manifest.groups:
            expect(start, at, "the start of a group")
            expect_true(stop > start, f"the group at {start} holds something")
            at = stop
        expect(at, len(manifest.tensors), "the end of the last group")

    # Gathering.

    def test_gathered_tensors_are_those_of_the_manifest(self) -> None:
        """As many, in order, of that shape and dtype, whole and with data."""
        manifest = self.source.manifest()
        for group in range(len(manifest.groups)):
            self._check(manifest, group, self._gather(group))

    def test_rounds_repeat(self) -> None:
        """Every round gathers all groups anew, with the same bytes as long as the model is the same."""
        first, second = (self._round() for _ in range(2))
        expect(second, first, "the second round")

    def test_gathered_tensors_stay_until_the_next_gather(self) -> None:
        """They are owned, or of storage that nobody frees before."""
        for group in range(len(self.source.manifest().groups)):
            tensors = self._gather(group)
            before = [fingerprint({"": tensor}) for tensor in tensors]
            if "frees_storage" in self.capabilities:
                self.free_storage()
            gc.collect()
            expect([fingerprint({"": tensor}) for tensor in tensors], before, f"group {group}, a little later")

    @requires("changes")
    def test_a_round_brings_the_weights_of_its_time(self) -> None:
        """Not those of the manifest's, and under the same manifest."""
        digest, before = self.source.manifest().digest, self._round()
        self.change()
        after = self._round()
        expect_true(before != after, "a round after a change brings other weights")
        expect(self.source.manifest().digest, digest, "the digest after a change")

    def _gather(self, group: int) -> list[Tensor]:
        found: Sequence[object] = self.source.gather(group)
        tensors = [tensor for tensor in found if isinstance(tensor, Tensor)]
        expect(len(tensors), len(found), f"tensors among what group {group} gathers")
        return tensors

    def _round(self) -> list[str]:
        groups = range(len(self.source.manifest().groups))
        return [fingerprint({"": tensor}) for group in groups for tensor in self._gather(group)]

    def _check(self, manifest: Manifest, group: int, tensors: list[Tensor]) -> None:
        start, stop = manifest.groups[group]
        expect(len(tensors), stop - start, f"tensors of group {group}")
        for meta, tensor in zip(manifest.tensors[start:stop], tensors, strict=True):
            expect(tuple(tensor.shape), meta.shape, f"the shape of {meta.name}")
            expect(str(tensor.dtype).removeprefix("torch."), meta.dtype, f"the dtype of {meta.name}")
            expect_true(not tensor.is_meta, f"{meta.name} has data")
            expect_true(not tensor.requires_grad, f"{meta.name} is detached from training")
            expect(type(tensor).__name__ in {"Tensor", "Parameter"}, True, f"{meta.name} is whole, not a DTensor")
