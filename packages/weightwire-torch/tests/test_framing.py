"""The pack rule, against a second statement of it, and tensors through packs and back."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from weightwire.messages import ITEM_BYTES, PackGeometry, TensorMeta
from weightwire_torch.dtypes import torch_dtype
from weightwire_torch.framing import largest_pack, packs, place, put_misaligned, raw, views

shapes = st.lists(st.integers(1, 5), max_size=3).map(tuple)
metas = st.lists(st.tuples(st.sampled_from(sorted(ITEM_BYTES)), shapes), max_size=12).map(
    lambda rows: [TensorMeta(f"t{i}", dtype, shape) for i, (dtype, shape) in enumerate(rows)]
)
sizes = st.integers(0, 300)


def packed(buffer_bytes: int) -> PackGeometry:
    return PackGeometry(packed=True, buffer_bytes=buffer_bytes, num_buffers=2)


UNPACKED = PackGeometry(packed=False, buffer_bytes=1 << 30, num_buffers=2)


def stated_again(tensors: list[TensorMeta], buffer_bytes: int) -> list[list[str]]:
    """The rule as a receiver follows it: take a tensor; is that more than the buffer? then that was a pack."""
    queue = [(t.name, math.prod(t.shape) * ITEM_BYTES[t.dtype]) for t in tensors]
    out: list[list[str]] = []
    while queue:
        taken: list[str] = []
        size = 0
        while queue and size <= buffer_bytes:
            name, nbytes = queue.pop(0)
            taken.append(name)
            size += nbytes
        out.append(taken)
    return out


@given(tensors=metas, buffer_bytes=sizes)
def test_packs_are_cut_as_the_rule_says(tensors: list[TensorMeta], buffer_bytes: int) -> None:
    cut = packs(tensors, packed(buffer_bytes))
    assert [[t.name for t in pack.tensors] for pack in cut] == stated_again(tensors, buffer_bytes)
    assert sum(pack.nbytes for pack in cut) == sum(t.nbytes for t in tensors)
    for pack in cut:
        assert list(pack.offsets) == [sum(t.nbytes for t in pack.tensors[:i]) for i in range(len(pack.tensors))]
        assert tensors[pack.start : pack.stop] == list(pack.tensors)


@given(tensors=metas, buffer_bytes=sizes, data=st.data())
def test_no_window_holds_a_larger_pack_than_foretold(
    tensors: list[TensorMeta], buffer_bytes: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(tensors)))
    stop = data.draw(st.integers(start, len(tensors)))
    window = packs(tensors[start:stop], packed(buffer_bytes))
    assert max((pack.nbytes for pack in window), default=0) <= largest_pack(tensors, packed(buffer_bytes))


@given(tensors=metas, buffer_bytes=sizes)
def test_the_largest_pack_can_occur(tensors: list[TensorMeta], buffer_bytes: int) -> None:
    geometry = packed(buffer_bytes)
    largest = max(
        (pack.nbytes for start in range(len(tensors)) for pack in packs(tensors[start:], geometry)), default=0
    )
    assert largest_pack(tensors, geometry) == largest


def random_tensor(meta: TensorMeta) -> torch.Tensor:
    if meta.dtype == "bool":
        return torch.randint(0, 2, meta.shape, dtype=torch.bool)
    noise = torch.randint(0, 256, (meta.nbytes,), dtype=torch.uint8)
    return noise.view(torch_dtype(meta.dtype)).view(meta.shape)


@settings(deadline=None)
@given(tensors=metas, buffer_bytes=sizes, unpacked=st.booleans(), shift=st.integers(0, 3))
def test_tensors_come_out_of_their_packs_as_they_went_in(
    tensors: list[TensorMeta], buffer_bytes: int, unpacked: bool, shift: int
) -> None:
    for pack in packs(tensors, UNPACKED if unpacked else packed(buffer_bytes)):
        buffer = torch.zeros(shift + pack.nbytes, dtype=torch.uint8)[shift:]  # the buffer itself may be misaligned
        sent = [random_tensor(meta) for meta in pack.tensors]
        for index, tensor in enumerate(sent):
            target = place(buffer, pack, index=index)
            if target is None:
                put_misaligned(buffer, pack, index=index, tensor=tensor)
            else:
                target.copy_(tensor)
        joined = b"".join(raw(tensor).numpy().tobytes() for tensor in sent)
        assert buffer.numpy().tobytes() == joined
        for tensor, view, meta in zip(sent, views(buffer, pack), pack.tensors, strict=True):
            assert (view.dtype, tuple(view.shape)) == (torch_dtype(meta.dtype), meta.shape)
            assert torch.equal(raw(view), raw(tensor))


@pytest.mark.parametrize(
    ("nbytes", "buffer_bytes", "expected"),
    [
        ([8], 8, [[0]]),  # not over the limit, so it is the remainder
        ([8, 8], 8, [[0, 1]]),  # strictly greater: the second closes the pack it overflows
        ([9, 1], 8, [[0], [1]]),  # over the limit alone
        ([4, 100, 4], 8, [[0, 1], [2]]),  # the one that overflows stays in the pack
        ([9, 9], 8, [[0], [1]]),  # nothing for an empty remainder
    ],
)
def test_the_edges_of_the_rule(nbytes: list[int], buffer_bytes: int, expected: list[list[int]]) -> None:
    tensors = [TensorMeta(str(i), "uint8", (size,)) for i, size in enumerate(nbytes)]
    got = [[int(t.name) for t in pack.tensors] for pack in packs(tensors, packed(buffer_bytes))]
    assert got == expected


def test_unpacked_is_one_collective_a_tensor() -> None:
    tensors = [TensorMeta("a", "uint8", (3,)), TensorMeta("b", "float32", ())]
    assert [pack.nbytes for pack in packs(tensors, UNPACKED)] == [3, 4]
    assert largest_pack(tensors, UNPACKED) == 4


def test_an_odd_number_of_bytes_before_a_wider_dtype_gives_right_values() -> None:
    tensors = [TensorMeta("odd", "bfloat16", (3,)), TensorMeta("wide", "float32", (2,))]
    (pack,) = packs(tensors, packed(1000))
    buffer = torch.zeros(pack.nbytes, dtype=torch.uint8)
    assert place(buffer, pack, index=1) is None
    put_misaligned(buffer, pack, index=1, tensor=torch.tensor([1.5, -2.5]))
    assert views(buffer, pack)[1].tolist() == [1.5, -2.5]


def test_a_misaligned_tensor_is_cast_too() -> None:
    tensors = [TensorMeta("odd", "uint8", (1,)), TensorMeta("wide", "bfloat16", (2,))]
    (pack,) = packs(tensors, packed(1000))
    buffer = torch.zeros(pack.nbytes, dtype=torch.uint8)
    put_misaligned(buffer, pack, index=1, tensor=torch.tensor([[1.5, 7.0], [-2.5, 7.0]])[:, 0])
    assert views(buffer, pack)[1].tolist() == [1.5, -2.5]
