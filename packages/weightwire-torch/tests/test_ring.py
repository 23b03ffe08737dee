"""Packs laid out in one piece of memory."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from weightwire.messages import PackGeometry, TensorMeta
from weightwire_torch.framing import packs
from weightwire_torch.ring import Ring, lay_out

sizes = st.lists(st.integers(1, 50), min_size=1, max_size=20)
slots = st.integers(1, 4)


@given(sizes=sizes, slots=slots, spare=st.integers(0, 100))
@example(sizes=[1, 1, 3, 1, 1], slots=4, spare=1)  # the third goes to the front, over the first two
def test_no_pack_is_written_over_one_that_is_still_under_way(sizes: list[int], slots: int, spare: int) -> None:
    capacity = max(sizes) + spare
    regions = lay_out(sizes, slots=slots, capacity=capacity)
    for index, region in enumerate(regions):
        assert region.stop - region.start == sizes[index]
        assert region.stop <= capacity
        assert region.after <= index  # or a window would wait for itself
        for earlier in regions[region.after : index]:
            assert earlier.stop <= region.start or region.stop <= earlier.start


@given(size=st.integers(1, 50), count=st.integers(1, 20), slots=slots)
def test_equal_packs_use_as_much_memory_as_there_are_slots(size: int, count: int, slots: int) -> None:
    regions = lay_out([size] * count, slots=slots, capacity=slots * size)
    assert max(region.stop for region in regions) == min(slots, count) * size
    assert all(region.after == max(0, i - slots + 1) for i, region in enumerate(regions))


def geometry(buffer_bytes: int) -> PackGeometry:
    return PackGeometry(packed=True, buffer_bytes=buffer_bytes, num_buffers=2)


@given(sizes=sizes, slots=slots, buffer_bytes=st.integers(1, 60), data=st.data())
def test_a_ring_fits_every_window_within_the_largest_tensor_and_its_buckets(
    sizes: list[int], slots: int, buffer_bytes: int, data: st.DataObject
) -> None:
    tensors = [TensorMeta(str(i), "uint8", (size,)) for i, size in enumerate(sizes)]
    ring = Ring.fitting(tensors, geometry(buffer_bytes), slots=slots)
    assert ring.nbytes <= max(sizes) + slots * buffer_bytes
    start = data.draw(st.integers(0, len(sizes)))
    window = packs(tensors[start:], geometry(buffer_bytes))
    for region, pack in zip(ring.lay_out(window), window, strict=True):
        assert ring.at(region).numel() == pack.nbytes
        assert ring.filler(pack.nbytes).numel() == pack.nbytes


def test_one_large_tensor_is_not_paid_for_by_every_slot() -> None:
    tensors = [TensorMeta("embed", "uint8", (1000,)), *(TensorMeta(str(i), "uint8", (10,)) for i in range(100))]
    assert Ring.fitting(tensors, geometry(40), slots=3).nbytes == 1000 + 2 * 50
