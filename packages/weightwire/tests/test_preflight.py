from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, ValuesView

import pytest
from weightwire import dtypes
from weightwire.errors import CompatibilityError, ManifestError
from weightwire.expected import Expected
from weightwire.messages import EngineInfo, EngineKind, Manifest, ReceiverLimits, TensorMeta
from weightwire.options import Options
from weightwire.preflight import check

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
SHAPES: dict[str, tuple[int, ...]] = {
    EMBED: (100, 8),
    **{
        f"model.layers.{layer}.{part}": shape
        for layer in range(2)
        for part, shape in {
            "self_attn.q_proj.weight": (16, 8),
            "self_attn.k_proj.weight": (8, 8),
            "self_attn.v_proj.weight": (8, 8),
            "self_attn.o_proj.weight": (8, 16),
            "mlp.gate_proj.weight": (32, 8),
            "mlp.up_proj.weight": (32, 8),
            "mlp.down_proj.weight": (8, 32),
            "input_layernorm.weight": (8,),
        }.items()
    },
    "model.norm.weight": (8,),
    HEAD: (100, 8),
}
TENSORS = {name: TensorMeta(name, "bfloat16", shape) for name, shape in SHAPES.items()}


def manifest(tensors: Iterable[TensorMeta]) -> Manifest:
    rows = tuple(tensors)
    return Manifest(rows, tuple((i, i + 1) for i in range(len(rows))))


def model(*without: str, **changed: TensorMeta) -> Manifest:
    """The whole model, without names that contain one of these, and with those changed."""
    kept = [t for name, t in TENSORS.items() if not any(part in name for part in without)]
    return manifest(changed.get(t.name, t) for t in kept)


def with_tensor(name: str, *shape: int, dtype: str = "bfloat16") -> Manifest:
    changed = TensorMeta(name, dtype, shape)
    return manifest(changed if t.name == name else t for t in TENSORS.values())


def engine(*, tied: bool | None = None, dtype: str = "", **limits: object) -> EngineInfo:
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
        tied_head=tied,
        dtype=dtype,
    )


def expectation(*without: str, tied: bool | None = False, optional: Iterable[str] = (), **dtypes: str) -> Expected:
    tensors = {name: t for name, t in TENSORS.items() if name not in without}
    for name, dtype in dtypes.items():
        tensors[name] = TensorMeta(name, dtype, tensors[name].shape)
    return Expected(tensors, tied, "the checkpoint", frozenset(optional))


def refusal(
    sent: Manifest,
    expected: Expected | None = None,
    *,
    infos: tuple[EngineInfo, ...] = (engine(),),
    options: Options | None = None,
    partial: bool = False,
) -> ManifestError:
    with pytest.raises(ManifestError) as caught:
        check(sent, infos, expected=expected, options=options or Options(), partial=partial)
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("expected", [None, expectation()])
def test_a_whole_model_passes(expected: Expected | None) -> None:
    check(model(), [engine(), engine()], expected=expected, options=Options())


# Malformed manifests


def test_an_empty_manifest_is_refused() -> None:
    assert "nothing to send" in refusal(manifest([])).message


def test_duplicate_names_are_refused_by_name() -> None:
    twice = refusal(manifest([*TENSORS.values(), TENSORS[EMBED]]))
    assert f"1 name(s) stand in the manifest more than once: {EMBED}." in twice.message


@pytest.mark.parametrize("groups", [(), ((0, 1),), ((0, 2), (1, 2)), ((1, 2), (0, 1)), ((0, 3),)])
def test_groups_that_do_not_cover_the_manifest_are_refused(groups: tuple[tuple[int, int], ...]) -> None:
    tensors = (TensorMeta("a", "float32", (1,)), TensorMeta("b", "float32", (1,)))
    assert "don't cover its 2 tensor(s)" in refusal(Manifest(tensors, groups)).message


@pytest.mark.parametrize("shape", [(0,), (4, 0)])
def test_tensors_without_elements_are_refused(shape: tuple[int, ...]) -> None:
    error = refusal(with_tensor(EMBED, *shape), expectation())
    assert f"no elements: {EMBED}" in error.message
    assert "ZeRO-3" in error.hint


def test_a_dtype_that_can_not_be_sent_is_refused_by_tensor() -> None:
    error = refusal(with_tensor(EMBED, 100, 8, dtype="complex64"), expectation())
    assert f"{EMBED} (complex64)" in error.message
    assert "bfloat16" in error.message


def test_a_dtype_that_one_engine_does_not_take_is_incompatible() -> None:
    infos = [engine(), engine(dtypes=("float32", "bfloat16"))]
    check(model(), infos, expected=expectation(), options=Options())
    with pytest.raises(
        CompatibilityError, match=r"model.norm.weight \(float8_e5m2\); it takes bfloat16, float32"
    ) as caught:
        check(with_tensor("model.norm.weight", 8, dtype="float8_e5m2"), infos, expected=None, options=Options())
    assert caught.value.where.engine == "http://127.0.0.1:8000"


def test_many_offenders_are_counted_and_the_first_named() -> None:
    sent = manifest(TensorMeta(name, "float99", shape) for name, shape in SHAPES.items())
    message = refusal(sent).message
    assert "19 tensor(s)" in message
    assert "and 16 more" in message
    assert message.count("float99") == 3


# Modules


@pytest.mark.parametrize("expected", [None, expectation()])
@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize("part", ["self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj", "mlp.up_proj"])
def test_half_of_a_fused_module_is_refused(expected: Expected | None, partial: bool, part: str) -> None:
    error = refusal(model(f"layers.1.{part}"), expected, partial=partial)
    assert f"lacks model.layers.1.{part}.weight" in error.message
    assert "model.layers.1.self_attn.qkv_proj" in error.message or "model.layers.1.mlp.gate_up_proj" in error.message


def test_a_lone_key_is_refused_whatever_is_known() -> None:
    only = manifest([TENSORS["model.layers.0.self_attn.k_proj.weight"]])
    for expected in (None, expectation()):
        assert "model.layers.0.self_attn.q_proj.weight" in refusal(only, expected, partial=True).message


def test_what_a_checkpoint_lacks_is_not_half_a_module() -> None:
    value = "model.layers.1.self_attn.v_proj.weight"  # Gemma 4 takes its values from the keys in some layers
    refusal(model(value))
    check(model(value), [engine()], expected=expectation(value), options=Options())


def test_a_scale_that_a_checkpoint_has_must_be_sent_with_its_weight() -> None:
    scale = TensorMeta("model.layers.0.mlp.down_proj.weight_scale", "float32", (1,))
    expected = Expected({**TENSORS, scale.name: scale}, False, "the checkpoint")
    assert f"model.layers.0.mlp.down_proj lacks {scale.name}" in refusal(model(), expected).message


@pytest.mark.parametrize("expected", [None, expectation()])
def test_a_module_whose_parts_lie_layers_apart_is_refused(expected: Expected | None) -> None:
    moved = "model.layers.0.mlp.up_proj.weight"
    sent = manifest([*(t for t in TENSORS.values() if t.name != moved), TENSORS[moved]])
    error = refusal(sent, expected)
    assert "scattered" in error.message
    assert "model.layers.0.mlp.gate_up_proj" in error.message


def test_the_order_within_a_layer_is_free() -> None:
    by_name = manifest(sorted(TENSORS.values(), key=lambda t: t.name))
    check(by_name, [engine()], expected=expectation(), options=Options())


def test_a_module_may_have_tensors_on_both_sides_of_its_layers() -> None:
    names = ["vision.class_embedding", "vision.layers.0.norm.weight", "vision.layers.1.norm.weight", "vision.position"]
    check(manifest(TensorMeta(name, "float32", (1,)) for name in names), [engine()], expected=None, options=Options())


# Names


def test_an_unknown_name_is_refused_with_the_one_that_was_meant() -> None:
    wrong = "model.layers.1.mlp.downproj.weight"
    right = "model.layers.1.mlp.down_proj.weight"
    sent = manifest(TensorMeta(wrong, t.dtype, t.shape) if t.name == right else t for t in TENSORS.values())
    message = refusal(sent, expectation()).message
    assert (
        f"1 of 19 name(s) are unknown to the engine, according to the checkpoint: {wrong} (meant: {right}?)" in message
    )


def test_a_name_like_no_other_is_refused_without_a_guess() -> None:
    message = refusal(manifest([*TENSORS.values(), TensorMeta("zzz", "float32", (1,))]), expectation()).message
    assert message.endswith(": zzz.")


@pytest.mark.parametrize("wrapper", ["module.", "base_model.model.", "_orig_mod."])
def test_a_prefix_too_many_is_found(wrapper: str) -> None:
    error = refusal(manifest(TensorMeta(wrapper + t.name, t.dtype, t.shape) for t in TENSORS.values()), expectation())
    assert error.hint == f"take {wrapper!r} off these names in the weight source"


def test_a_prefix_too_few_is_found() -> None:
    bare = manifest(TensorMeta(t.name.removeprefix("model."), t.dtype, t.shape) for t in TENSORS.values())
    assert refusal(bare, expectation()).hint == "put 'model.' before these names in the weight source"


def test_a_full_push_must_send_every_expected_name() -> None:
    error = refusal(model("layers.1", "lm_head"), expectation(tied=True, optional=[HEAD]))
    assert "8 of 19 tensor(s)" in error.message
    assert "model.layers.1.self_attn.q_proj.weight" in error.message


def test_a_partial_push_may_leave_whole_modules_out() -> None:
    frozen = ("embed_tokens", "layers.0", "norm", "lm_head")
    check(model(*frozen), [engine()], expected=expectation(), options=Options(), partial=True)
    check(model(*frozen), [engine()], expected=None, options=Options(), partial=True)


def test_an_optional_name_may_be_left_out() -> None:
    expected = expectation(optional=["model.norm.weight"])
    check(model("model.norm"), [engine()], expected=expected, options=Options())
    check(model(), [engine()], expected=expected, options=Options())


# The output head


@pytest.mark.parametrize(
    ("expected", "tied"),
    [
        (expectation(HEAD, tied=None), None),
        (expectation(tied=True, optional=[HEAD]), None),
        (expectation(tied=True, optional=[HEAD]), False),
        (expectation(tied=False), True),
        (None, True),
        (None, None),
    ],
)
def test_a_head_that_the_server_may_have_may_be_sent_or_left_out(expected: Expected | None, tied: bool | None) -> None:
    infos = [engine(tied=tied)]
    check(model("lm_head"), infos, expected=expected, options=Options())
    check(model(), infos, expected=expected, options=Options())


def test_a_head_that_a_tied_engine_would_skip_is_refused() -> None:
    tied = expectation(HEAD, tied=True)
    with pytest.raises(ManifestError, match="tied to its embedding"):
        check(model(), [engine()], expected=tied, options=Options())
    check(model("lm_head"), [engine()], expected=tied, options=Options())


@pytest.mark.parametrize(
    ("expected", "ties"),
    [
        (expectation(tied=False), [None]),
        (expectation(tied=None), [None]),
        (expectation(tied=False), [True, None]),
        (expectation(HEAD, tied=None), [True, False]),
        (None, [False]),
    ],
)
def test_a_head_of_the_engines_own_must_be_sent(expected: Expected | None, ties: list[bool | None]) -> None:
    infos = tuple(engine(tied=tied) for tied in ties)
    error = refusal(model("lm_head"), expected, infos=infos)
    assert "output head of its own" in error.message
    assert "tie_word_embeddings=False" in error.hint
    check(model(), infos, expected=expected, options=Options())
    check(model("lm_head"), infos, expected=expected, options=Options(), partial=True)


def test_a_head_is_unknown_to_an_engine_that_has_none() -> None:
    assert HEAD in refusal(model(), expectation(HEAD, tied=False)).message


# Shapes


def test_a_wrong_shape_is_refused_with_both() -> None:
    name = "model.layers.0.self_attn.o_proj.weight"
    message = refusal(with_tensor(name, 16, 8), expectation()).message
    assert f"{name} is [16, 8], expected [8, 16]" in message


@pytest.mark.parametrize("name", [EMBED, HEAD])
@pytest.mark.parametrize("rows", [128, 50])
def test_other_vocabulary_rows_are_explained(name: str, rows: int) -> None:
    hint = refusal(with_tensor(name, rows, 8), expectation()).hint
    assert f"vocabulary has {rows} rows and the engine's 100" in hint


@pytest.mark.parametrize("shape", [(8, 8), (16, 2)])
def test_a_shard_is_recognised(shape: tuple[int, ...]) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    assert "one shard" in refusal(with_tensor(name, *shape), expectation()).hint


def test_a_flat_parameter_is_recognised() -> None:
    assert "flattened" in refusal(with_tensor(EMBED, 800), expectation()).hint


def test_another_model_is_suspected_where_nothing_fits() -> None:
    assert "serves the model" in refusal(with_tensor("model.layers.0.mlp.up_proj.weight", 33, 9), expectation()).hint


# Dtypes


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_another_float_dtype_is_refused_only_if_asked(dtype: str) -> None:
    sent = with_tensor("model.norm.weight", 8, dtype=dtype)
    check(sent, [engine()], expected=expectation(), options=Options(dtype="cast"))
    message = refusal(sent, expectation(), options=Options(dtype="refuse")).message
    assert f"model.norm.weight is {dtype}, expected bfloat16" in message


def test_the_dtype_that_the_engine_runs_in_is_never_refused() -> None:
    sent = with_tensor("model.norm.weight", 8, dtype="float32")
    check(sent, [engine(dtype="float32")], expected=expectation(), options=Options(dtype="refuse"))


@pytest.mark.parametrize("dtype", ["cast", "refuse"])
@pytest.mark.parametrize(("wanted", "sent"), [("float8_e4m3fn", "bfloat16"), ("bfloat16", "int8"), ("uint8", "int8")])
def test_a_quantised_tensor_is_never_cast(dtype: str, wanted: str, sent: str) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    error = refusal(
        with_tensor(name, 8, 32, dtype=sent),
        expectation(**{name: wanted}),
        options=Options(dtype=dtype),
    )
    assert f"{name} is {sent}, expected {wanted}" in error.message
    assert "scales" in error.hint


class Counted(dict[str, TensorMeta]):
    """Counts how often it is gone through from end to end."""

    walks = 0

    def __iter__(self) -> Iterator[str]:
        self.walks += 1
        return super().__iter__()

    def values(self) -> ValuesView[TensorMeta]:
        self.walks += 1
        return super().values()

    def items(self) -> ItemsView[str, TensorMeta]:
        self.walks += 1
        return super().items()


def walks(count: int) -> int:
    """How often the expectation is gone through for a push of *count* tensors, half of them kept in float32."""
    rows = [TensorMeta(f"layers.{i}.weight", ("bfloat16", "float32")[i % 2], (2,)) for i in range(count)]
    expected = Expected(Counted((row.name, row) for row in rows), tied_head=None, origin="a test")
    sent = manifest(TensorMeta(row.name, "float32", row.shape) for row in rows)
    engines = [engine(dtype="bfloat16")]
    travels = dtypes.on_the_wire(sent, engines, expected=expected, options=Options())
    check(travels, engines, expected=expected, options=Options())
    assert [row.dtype for row in travels.tensors] == [row.dtype for row in rows]
    assert isinstance(expected.tensors, Counted)
    return expected.tensors.walks


def test_the_work_grows_with_the_number_of_tensors_and_not_with_its_square() -> None:
    assert walks(200) == walks(20)


@pytest.mark.parametrize("name", ["weight\ud800", "\udfff"])
def test_a_name_with_half_a_character_is_refused_in_words_that_can_be_printed(name: str) -> None:
    with pytest.raises(ManifestError, match="half a character") as caught:
        check(manifest([TensorMeta(name, "float32", (1,))]), [engine()], expected=None, options=Options())
    str(caught.value).encode()


def test_names_of_any_language_are_names() -> None:
    check(manifest([TensorMeta("gewicht_ü_日本", "float32", (1,))]), [engine()], expected=None, options=Options())
