from __future__ import annotations

import json
from pathlib import Path

import pytest
from weightwire.checkpoint import ModelFacts, read_index
from weightwire.errors import ConfigurationError
from weightwire.messages import TensorMeta
from weightwire.safetensors_header import DTYPES

Shape = tuple[str, tuple[int, ...]]
WIDTH = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2}


def header_of(tensors: dict[str, Shape]) -> tuple[dict[str, object], int]:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in tensors.items():
        size = WIDTH.get(dtype, 1)
        for length in shape:
            size *= length
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": (at, at + size)}
        at += size
    return entries, at


def write_raw(path: Path, header: bytes, data: bytes) -> Path:
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def write(path: Path, tensors: dict[str, Shape], data: bytes | None = None) -> Path:
    entries, size = header_of(tensors)
    return write_raw(path, json.dumps(entries).encode(), bytes(size) if data is None else data)


def write_index(directory: Path, weight_map: dict[str, str]) -> Path:
    path = directory / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return path


def write_shards(directory: Path) -> dict[str, str]:
    """Two shards with layer 2 in both, indexed as text like transformers does it."""
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    one: Shape = ("BF16", (2, 2))
    write(directory / first, {"embed.weight": one, "layers.0.a": one, "layers.2.b": one, "layers.1.a": one})
    write(directory / second, {"layers.2.a": one, "layers.10.a": one, "norm.weight": ("F32", (2,))})
    weight_map = {
        "embed.weight": first,
        "layers.0.a": first,
        "layers.1.a": first,
        "layers.10.a": second,
        "layers.2.a": second,
        "layers.2.b": first,
        "norm.weight": second,
    }
    write_index(directory, weight_map)
    return weight_map


def refusal(path: Path) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        read_index(path)
    assert str(path.name) in caught.value.message
    return caught.value


def test_a_single_file_is_read_in_the_order_of_its_bytes(tmp_path: Path) -> None:
    entries, size = header_of({"b": ("F32", (2, 3)), "a": ("BF16", ()), "c": ("F8_E4M3", (5,))})
    backwards = dict(reversed(entries.items()))
    file = write_raw(tmp_path / "model.safetensors", json.dumps(backwards).encode(), bytes(size))
    for path in (tmp_path, file):
        index = read_index(path)
        assert index.directory == tmp_path
        assert index.tensors == (
            TensorMeta("b", "float32", (2, 3)),
            TensorMeta("a", "bfloat16", ()),
            TensorMeta("c", "float8_e4m3fn", (5,)),
        )
        assert set(index.files.values()) == {"model.safetensors"}
        start = file.stat().st_size - size
        assert index.spans == {"b": (start, start + 24), "a": (start + 24, start + 26), "c": (start + 26, start + 31)}


@pytest.mark.parametrize(("stored", "wire"), DTYPES.items())
def test_every_dtype_has_its_name_on_the_wire(tmp_path: Path, stored: str, wire: str) -> None:
    write(tmp_path / "model.safetensors", {"x": (stored, (3,))})
    assert read_index(tmp_path).tensors == (TensorMeta("x", wire, (3,)),)


def test_shards_are_read_as_the_index_says_with_layers_by_number(tmp_path: Path) -> None:
    weight_map = write_shards(tmp_path)
    for path in (tmp_path, tmp_path / "model.safetensors.index.json"):
        index = read_index(path)
        assert [t.name for t in index.tensors] == [
            "embed.weight",
            "layers.0.a",
            "layers.1.a",
            "layers.2.a",
            "layers.2.b",
            "layers.10.a",
            "norm.weight",
        ]
        assert index.files == weight_map


@pytest.mark.parametrize(
    ("config", "facts"),
    [
        (None, ModelFacts()),
        ({}, ModelFacts()),
        ({"tie_word_embeddings": True, "num_hidden_layers": 3}, ModelFacts(tied_head=True, num_layers=3)),
        ({"tie_word_embeddings": False, "text_config": {"tie_word_embeddings": True}}, ModelFacts(tied_head=False)),
        (
            {"text_config": {"tie_word_embeddings": True, "num_hidden_layers": 4, "num_kv_shared_layers": 2}},
            ModelFacts(tied_head=True, num_layers=4, num_shared_kv=2),
        ),
        ({"text_config": None, "num_hidden_layers": [1, 2], "tie_word_embeddings": "no"}, ModelFacts()),
    ],
)
def test_the_config_says_how_the_model_is_built(tmp_path: Path, config: object, facts: ModelFacts) -> None:
    write(tmp_path / "model.safetensors", {"x": ("F32", (1,))})
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    index = read_index(tmp_path)
    assert index.facts == facts
    assert index.tied_head is facts.tied_head


@pytest.mark.parametrize(("second", "same"), [(bytes(12), True), (bytes(11) + b"\1", False), (bytes(8), False)])
def test_two_tensors_can_be_compared_by_their_bytes(tmp_path: Path, second: bytes, same: bool) -> None:
    tensors: dict[str, Shape] = {"a": ("U8", (12,)), "b": ("U8", (len(second),))}
    write(tmp_path / "model.safetensors", tensors, bytes(12) + second)
    assert read_index(tmp_path).same_bytes("a", "b") is same


def test_a_checkpoint_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "There is no checkpoint" in refusal(tmp_path / "nowhere").message


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    assert "found no files" in refusal(tmp_path).message


def test_a_directory_without_weights_says_what_it_found(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert "found config.json" in refusal(tmp_path).message


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickled_weights_are_refused_with_the_way_to_convert_them(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    for path in (tmp_path, tmp_path / name):
        assert "save_pretrained" in refusal(path).hint
    assert f"only {name}" in refusal(tmp_path).message


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"x")
    assert "is no checkpoint" in refusal(tmp_path / "model.gguf").message


@pytest.mark.parametrize("kept", ["model-00001-of-00002.safetensors", "*"])
def test_shards_without_their_index_are_refused(tmp_path: Path, kept: str) -> None:
    write_shards(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    for file in set(tmp_path.iterdir()) - set(tmp_path.glob(kept)):
        file.unlink()
    assert "without their index" in refusal(tmp_path).message


def test_a_missing_shard_is_refused_by_name(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    message = refusal(tmp_path).message
    assert "2 shard(s), and 1 of them are missing: model-00002-of-00002.safetensors" in message


def test_a_shard_without_a_tensor_of_the_index_is_refused_by_name(tmp_path: Path) -> None:
    weight_map = write_shards(tmp_path)
    write_index(tmp_path, {**weight_map, "lost.weight": "model-00001-of-00002.safetensors"})
    assert "model-00001-of-00002.safetensors lacks lost.weight" in refusal(tmp_path).message


def test_a_tensor_in_two_shards_is_refused_with_both(tmp_path: Path) -> None:
    write_shards(tmp_path)
    write(tmp_path / "model-00002-of-00002.safetensors", {"embed.weight": ("F32", (1,))})
    message = refusal(tmp_path).message
    assert "embed.weight twice" in message
    assert "model-00001-of-00002.safetensors" in message
    assert "model-00002-of-00002.safetensors" in message


def test_two_checkpoints_in_one_directory_are_refused_unless_one_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path)
    write(tmp_path / "model.safetensors", {"x": ("F32", (1,))})
    assert "holds two checkpoints" in refusal(tmp_path).message
    assert len(read_index(tmp_path / "model.safetensors").tensors) == 1
    assert len(read_index(tmp_path / "model.safetensors.index.json").tensors) == 7


def test_several_single_files_are_refused_unless_one_has_the_usual_name(tmp_path: Path) -> None:
    write(tmp_path / "a.safetensors", {"x": ("F32", (1,))})
    write(tmp_path / "b.safetensors", {"x": ("F32", (1,))})
    assert "2 checkpoints (a.safetensors, b.safetensors)" in refusal(tmp_path).message
    write(tmp_path / "model.safetensors", {"x": ("F32", (1,))})
    assert read_index(tmp_path).files == {"x": "model.safetensors"}


def test_an_index_may_not_lead_out_of_its_directory(tmp_path: Path) -> None:
    write_index(tmp_path, {"x": "../elsewhere.safetensors"})
    assert "'../elsewhere.safetensors'" in refusal(tmp_path).message


@pytest.mark.parametrize("text", ["{", '{"metadata": {}}', '{"weight_map": {"x": 1}}', "\xff"])
def test_a_damaged_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text, encoding="latin-1")
    assert "can't be read" in refusal(tmp_path).message


def test_a_damaged_config_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"x": ("F32", (1,))})
    (tmp_path / "config.json").write_text("[1")
    assert "config.json can't be read" in refusal(tmp_path).message


@pytest.mark.parametrize("kept", [0, 5, 8, 40, -400, -1])
def test_a_truncated_file_is_refused_with_the_bytes_found(tmp_path: Path, kept: int) -> None:
    file = write(tmp_path / "model.safetensors", {"x": ("F32", (100,))})
    file.write_bytes(file.read_bytes()[:kept])
    message = refusal(tmp_path).message
    assert "truncated" in message
    assert f"the file has {file.stat().st_size}." in message


def test_a_truncated_file_is_refused_with_the_bytes_expected(tmp_path: Path) -> None:
    file = write(tmp_path / "model.safetensors", {"x": ("F32", (100,))})
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert f"promises {len(whole)} bytes in all" in refusal(tmp_path).message


def test_a_truncated_shard_is_refused_by_name(tmp_path: Path) -> None:
    write_shards(tmp_path)
    shard = tmp_path / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert "model-00002-of-00002.safetensors is truncated" in refusal(tmp_path).message


def test_a_git_lfs_pointer_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    assert "lfs pull" in refusal(tmp_path).hint


@pytest.mark.parametrize("header", [b"not json", b"[]", b'{"x": {"dtype": "F32"}}', b'{"\xff": 1}'])
def test_a_header_that_is_not_the_right_json_is_refused(tmp_path: Path, header: bytes) -> None:
    write_raw(tmp_path / "model.safetensors", header, b"")
    assert "is not a safetensors file" in refusal(tmp_path).message


def test_an_unknown_dtype_is_refused_with_its_tensor(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"layers.0.scale": ("F8_E8M0", (4,))})
    message = refusal(tmp_path).message
    assert "layers.0.scale as F8_E8M0" in message
    assert "BF16" in message


@pytest.mark.parametrize("offsets", [(0, 3), (-4, 0)])
def test_a_tensor_whose_bytes_do_not_fit_its_shape_is_refused(tmp_path: Path, offsets: tuple[int, int]) -> None:
    header = {"x": {"dtype": "F32", "shape": [1], "data_offsets": offsets}}
    write_raw(tmp_path / "model.safetensors", json.dumps(header).encode(), bytes(8))
    assert "is damaged: x" in refusal(tmp_path).message


def test_a_shape_below_nothing_is_refused(tmp_path: Path) -> None:
    header = {"x": {"dtype": "F32", "shape": [-1, -2], "data_offsets": (0, 8)}}
    write_raw(tmp_path / "model.safetensors", json.dumps(header).encode(), bytes(8))
    assert "is damaged: x" in refusal(tmp_path).message


@pytest.mark.parametrize(
    ("spans", "size", "said"),
    [
        ([(0, 4), (0, 4)], 4, "y overlaps x"),
        ([(0, 4), (2, 6)], 6, "y overlaps x"),
        ([(0, 4), (8, 12)], 12, "y leaves a gap behind x"),
        ([(4, 8), (8, 12)], 12, "x leaves a gap behind the header"),
        ([(0, 4), (4, 8)], 108, "100 bytes stand behind the last tensor"),
    ],
)
def test_tensors_that_do_not_follow_each_other_to_the_last_byte_are_refused(
    tmp_path: Path, spans: list[tuple[int, int]], size: int, said: str
) -> None:
    header = {
        name: {"dtype": "F32", "shape": [1], "data_offsets": span} for name, span in zip("xy", spans, strict=True)
    }
    write_raw(tmp_path / "model.safetensors", json.dumps(header).encode(), bytes(size))
    assert said in refusal(tmp_path).message


def test_tensors_without_elements_take_no_bytes_wherever_they_stand(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"z": ("F32", (0,)), "x": ("F32", (1,)), "a": ("F32", (2, 0))})
    assert len(read_index(tmp_path).tensors) == 3


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "adapter_model.bin"])
def test_an_adapter_alone_is_refused_with_the_way_to_merge_it(tmp_path: Path, file: str) -> None:
    write(tmp_path / file, {"base_model.model.x.lora_A.weight": ("F32", (2, 2))})
    (tmp_path / "adapter_config.json").write_text("{}")
    for path in {tmp_path, tmp_path / file} - {tmp_path / "adapter_model.bin"}:
        error = refusal(path)
        assert "only an adapter" in error.message
        assert "merge_and_unload" in error.hint


def test_an_adapter_beside_a_model_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "adapter_model.safetensors", {"x.lora_A.weight": ("F32", (1,))})
    write(tmp_path / "weights.safetensors", {"x": ("F32", (1,))})
    assert read_index(tmp_path).files == {"x": "weights.safetensors"}


def test_a_checkpoint_without_tensors_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {})
    assert "holds no tensors" in refusal(tmp_path).message


def test_a_file_that_can_not_be_opened_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").mkdir()
    index = write_index(tmp_path, {"x": "model.safetensors"})
    assert "missing" in refusal(index).message
