from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from weightwire.errors import ConfigurationError
from weightwire.fused import module_of, part_of
from weightwire.messages import (
    ITEM_BYTES,
    EngineInfo,
    EngineKind,
    Manifest,
    PackGeometry,
    ReceiverLimits,
    TensorMeta,
    item_bytes,
)
from weightwire.options import Options
from weightwire.packing import pack_offsets, whole_sizes
from weightwire.plan import geometry, windows


def engine(**limits: object) -> EngineInfo:
    return EngineInfo(
        url="http://127.0.0.1:8000",
        engine="vllm",
        version="0.32.0",
        dialect="0.28",
        control_plane="vllm",
        backend="nccl",
        kind=EngineKind.STOCK,
        world_size=1,
        limits=ReceiverLimits(**limits),
    )


def manifest(*tensors: TensorMeta, groups: tuple[tuple[int, int], ...] = ()) -> Manifest:
    return Manifest(tensors, groups or tuple((i, i + 1) for i in range(len(tensors))))


def tensor(name: str, *shape: int, dtype: str = "float32") -> TensorMeta:
    return TensorMeta(name, dtype, shape)


LAYER = (
    tensor("l.0.self_attn.k_proj.weight", 8),
    tensor("l.0.self_attn.o_proj.weight", 8),
    tensor("l.0.self_attn.q_proj.weight", 8),
    tensor("l.0.self_attn.v_proj.weight", 8),
    tensor("l.0.norm.weight", 8),
    tensor("l.0.norm.bias", 8),
)

NAMES = st.sampled_from(
    [f"l.{layer}.{part}" for layer in range(3) for part in ("q_proj.w", "k_proj.w", "v_proj.w", "n.w", "n.b", "e.A")]
)
SHAPES = st.lists(st.integers(1, 5), max_size=3).map(tuple)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    names = draw(st.lists(NAMES, unique=True, min_size=1))
    tensors = tuple(TensorMeta(name, draw(st.sampled_from(sorted(ITEM_BYTES))), draw(SHAPES)) for name in names)
    inner = draw(st.sets(st.integers(1, len(names) - 1))) if len(names) > 1 else set()
    edges = sorted({0, len(names)} | inner)
    return Manifest(tensors, tuple(itertools.pairwise(edges)))


@given(manifests(), st.integers(1, 200))
def test_windows_cover_the_manifest_and_cut_no_group_and_no_module(sent: Manifest, limit: int) -> None:
    shape = PackGeometry(packed=True, buffer_bytes=limit, num_buffers=2)
    cut = windows(sent, shape, infos=[engine(), engine(whole_modules=True)])
    assert [w.index for w in cut] == list(range(len(cut)))
    edges = [0, *(w.stop for w in cut)]
    assert [(w.start, w.stop) for w in cut] == list(itertools.pairwise(edges))
    assert edges[-1] == len(sent.tensors)
    assert {start for start, _ in sent.groups} >= {w.start for w in cut}
    held = [{module_of(t.name) for t in sent.tensors[w.start : w.stop]} for w in cut]
    assert sum(map(len, held)) == len(set().union(*held))


@given(manifests(), st.integers(1, 200))
def test_neighbouring_windows_would_not_fit_into_one(sent: Manifest, limit: int) -> None:
    shape = PackGeometry(packed=True, buffer_bytes=limit, num_buffers=2)
    cut = windows(sent, shape, infos=[engine(whole_modules=True)])
    sizes = [sum(t.nbytes for t in sent.tensors[w.start : w.stop]) for w in cut]
    assert all(left + right > limit for left, right in itertools.pairwise(sizes))


@given(st.lists(st.integers(0, 50)), st.integers(1, 60))
def test_packs_are_full_but_for_the_last_and_no_tensor_is_past_the_rule(sizes: list[int], limit: int) -> None:
    placed = list(pack_offsets(sizes, limit))
    for pack, members in itertools.groupby(range(len(sizes)), key=lambda i: placed[i][0]):
        inside = list(members)
        ends = list(itertools.accumulate(sizes[i] for i in inside))
        assert [placed[i][1] for i in inside] == [0, *ends[:-1]]
        assert all(end <= limit for end in ends[:-1])
        assert ends[-1] > limit or pack == placed[-1][0]


@given(manifests(), st.integers(1, 200), st.booleans())
def test_packs_are_chosen_only_where_every_tensor_is_aligned(sent: Manifest, limit: int, whole_modules: bool) -> None:
    infos = [engine(whole_modules=whole_modules)]
    shape = geometry(sent, infos, Options(bucket_bytes=limit))
    aligned = True
    for window in windows(sent, shape, infos=infos):
        tensors = sent.tensors[window.start : window.stop]
        offsets = pack_offsets([t.nbytes for t in tensors], limit)
        aligned &= all(at % item_bytes(t.dtype) == 0 for t, (_, at) in zip(tensors, offsets, strict=True))
    assert shape.packed == aligned


def test_a_tensor_that_fills_a_pack_exactly_does_not_close_it() -> None:
    assert list(pack_offsets([4, 4, 1, 9, 2], 8)) == [(0, 0), (0, 4), (0, 8), (1, 0), (2, 0)]


def test_one_window_holds_everything_where_no_engine_minds() -> None:
    sent = manifest(*LAYER)
    cut = windows(sent, PackGeometry(packed=True, buffer_bytes=1, num_buffers=2), infos=[engine()])
    assert [(w.index, w.start, w.stop) for w in cut] == [(0, 0, 6)]


def test_an_empty_manifest_has_no_windows() -> None:
    assert windows(manifest(), PackGeometry(packed=True, buffer_bytes=1, num_buffers=2), infos=[engine()]) == ()


def test_a_window_does_not_end_inside_a_fused_module() -> None:
    shape = PackGeometry(packed=True, buffer_bytes=1, num_buffers=2)
    cut = windows(manifest(*LAYER), shape, infos=[engine(whole_modules=True)])
    assert [(w.start, w.stop) for w in cut] == [(0, 4), (4, 6)]


def test_a_window_does_not_end_inside_a_group() -> None:
    shape = PackGeometry(packed=True, buffer_bytes=1, num_buffers=2)
    cut = windows(manifest(*LAYER, groups=((0, 5), (5, 6))), shape, infos=[engine(whole_modules=True)])
    assert [(w.start, w.stop) for w in cut] == [(0, 6)]


def test_the_geometry_is_the_least_that_any_engine_can_take() -> None:
    infos = [engine(num_buffers=4), engine(num_buffers=1)]
    shape = geometry(manifest(*LAYER), infos, Options(bucket_bytes=64, num_buckets=3))
    assert shape == PackGeometry(packed=True, buffer_bytes=64, num_buffers=1)
    assert geometry(manifest(*LAYER), [engine(num_buffers=4)], Options(num_buckets=3)).num_buffers == 3


ODD = manifest(tensor("a.weight", 3, dtype="bfloat16"), tensor("b.weight", 2))
SCALAR = manifest(tensor("a.weight", 2), tensor("b.scale"))


@pytest.mark.parametrize(
    ("sent", "limits", "said"),
    [
        (manifest(*LAYER), {"packed": False}, "takes no packs"),
        (SCALAR, {"packed_scalars": False}, "b.scale"),
        (ODD, {}, "b.weight (float32) would start at byte 6"),
    ],
)
def test_packs_that_an_engine_could_not_take_apart_are_avoided_or_refused(
    sent: Manifest, limits: dict[str, bool], said: str
) -> None:
    infos = [engine(), engine(**limits)]
    assert not geometry(sent, infos, Options()).packed
    with pytest.raises(ConfigurationError) as caught:
        geometry(sent, infos, Options(packed=True))
    assert said in caught.value.message
    assert "http://127.0.0.1:8000" in caught.value.message


STACK = manifest(
    tensor("embed.weight", 10),
    *(
        tensor(f"l.{layer}.{name}.weight", size)
        for layer in range(8)
        for name, size in (("attn.q_proj", 8), ("attn.k_proj", 2), ("attn.v_proj", 2), ("mlp.down", 8), ("norm", 1))
    ),
    tensor("head.weight", 10),
)
LAYER_BYTES = 84


def parts_cut(sent: Manifest, shape: PackGeometry) -> set[str]:
    packs: dict[str, set[int]] = {}
    offsets = pack_offsets([t.nbytes for t in sent.tensors], shape.buffer_bytes)
    for held, (pack, _) in zip(sent.tensors, offsets, strict=True):
        for name in (module_of(held.name), part_of(held.name)):
            packs.setdefault(name, set()).add(pack)
    return {name for name, found in packs.items() if len(found) > 1}


@given(st.integers(4, 1000))
def test_as_many_packs_at_once_as_wanted_only_where_none_cuts_a_part_of_a_block(limit: int) -> None:
    shape = geometry(STACK, [engine(num_buffers=1)], Options(bucket_bytes=limit))
    assert (shape.buffer_bytes, shape.num_buffers) == (limit, 1 if parts_cut(STACK, shape) else 2)


@given(st.integers(4, 1000))
def test_a_size_that_nobody_asked_for_is_made_smaller_so_that_two_packs_may_be_loaded_at_once(limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weightwire.plan.STOCK_BUCKET", limit)
        shape = geometry(STACK, [engine(num_buffers=1)], Options())
    assert shape.num_buffers == 1 or not parts_cut(STACK, shape)
    assert limit // 2 <= shape.buffer_bytes <= limit
    if limit >= 3 * LAYER_BYTES:
        assert shape.num_buffers == 2
    if shape.num_buffers == 1:
        assert shape.buffer_bytes == limit


def test_packs_of_some_layers_each_are_found_behind_an_embedding_that_is_a_pack_by_itself() -> None:
    sent = manifest(tensor("embed.weight", 100), *STACK.tensors[1:])
    sizes = list(whole_sizes(sent.tensors, most=300, least=150))
    assert 3 * LAYER_BYTES - 1 in sizes
    assert sizes == sorted(sizes, reverse=True)


def test_what_no_table_knows_is_not_cut_within_its_part_of_a_block() -> None:
    sent = manifest(*(tensor(f"l.0.mixer.{name}.weight", 8) for name in ("strange_a", "strange_b")))
    assert geometry(sent, [engine(num_buffers=1)], Options(bucket_bytes=16)).num_buffers == 1


def test_where_each_call_holds_whole_modules_the_number_is_left_as_the_engine_has_it() -> None:
    infos = [engine(num_buffers=1, whole_modules=True)]
    assert geometry(STACK, infos, Options(bucket_bytes=LAYER_BYTES - 1)).num_buffers == 1


def test_packs_can_be_turned_off() -> None:
    assert not geometry(manifest(*LAYER), [engine()], Options(packed=False)).packed


def test_unaligned_packs_and_scalars_pass_where_the_engine_takes_them() -> None:
    assert geometry(ODD, [engine(aligned_packs=False)], Options(packed=True)).packed
    assert geometry(SCALAR, [engine()], Options(packed=True)).packed


def test_a_misaligned_tensor_is_fine_once_it_starts_a_pack_of_its_own() -> None:
    assert geometry(ODD, [engine()], Options(bucket_bytes=5, packed=True)).packed


@pytest.mark.parametrize(
    ("kind", "device", "size"),
    [
        (EngineKind.STOCK, "cuda", 1024**3),
        (EngineKind.OURS, "cuda", 256 * 1024**2),
        (EngineKind.OURS, "cpu", 32 * 1024**2),
        (EngineKind.OURS, "", 32 * 1024**2),
    ],
)
def test_the_size_of_a_pack_is_chosen_by_what_the_engine_runs_and_runs_on(
    kind: EngineKind, device: str, size: int
) -> None:
    info = msgspec.structs.replace(engine(), kind=kind, device=device)
    assert geometry(manifest(*LAYER), [info], Options()).buffer_bytes == size
    assert geometry(manifest(*LAYER), [info], Options(bucket_bytes=7)).buffer_bytes == 7
