from __future__ import annotations

import json
from pathlib import Path

import pytest
from weightwire.checkpoint import read_index
from weightwire.errors import ConfigurationError
from weightwire.expected import Expected, find, from_checkpoint, from_manifest
from weightwire.messages import EngineInfo, EngineKind, Manifest, ReceiverLimits, TensorMeta
from weightwire.options import Options
from weightwire.output_head import is_head

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def engine(model: str = "") -> EngineInfo:
    return EngineInfo(
        url="http://127.0.0.1:8000",
        engine="vllm",
        version="0.32.0",
        dialect="0.28",
        control_plane="vllm",
        backend="nccl",
        kind=EngineKind.STOCK,
        world_size=1,
        limits=ReceiverLimits(),
        model=model,
    )


def write(directory: Path, tensors: dict[str, bytes], **config: object) -> Path:
    """Write one-dimensional uint8 tensors with these contents."""
    directory.mkdir(parents=True, exist_ok=True)
    header, at = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"".join(tensors.values()))
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def cached(home: Path, model: str, **tensors: bytes) -> Path:
    repository = home / f"models--{model.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc123\n")
    return write(repository / "snapshots" / "abc123", tensors)


def names(expected: Expected | None) -> set[str]:
    assert expected is not None
    return set(expected.tensors)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))


def test_the_option_comes_before_what_the_engine_says(tmp_path: Path) -> None:
    write(tmp_path / "option", {"a": b"1"})
    write(tmp_path / "server", {"b": b"1"})
    info = engine(str(tmp_path / "server"))
    found = find(info, Options(expected=str(tmp_path / "option")))
    assert names(found) == {"a"}
    assert found is not None
    assert str(tmp_path / "option") in found.origin
    assert names(find(info, Options())) == {"b"}


def test_the_option_may_be_a_hub_id_that_is_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached(tmp_path / "hub", "org/model", a=b"1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert names(find(engine(), Options(expected="org/model"))) == {"a"}


def test_an_option_that_names_no_checkpoint_is_refused_as_such(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"The option expected='.*nowhere' can't be used: There is no"):
        find(engine(), Options(expected=str(tmp_path / "nowhere")))


@pytest.mark.parametrize(
    ("variable", "below"),
    [
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
        ("HOME", ".cache/huggingface/hub"),
    ],
)
def test_a_hub_id_is_looked_up_where_the_hub_library_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, below: str
) -> None:
    cached(tmp_path / below, "org/model-1.5", a=b"1")
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv(variable, str(tmp_path))
    assert names(find(engine("org/model-1.5"), Options())) == {"a"}


def test_what_is_not_on_this_machine_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "model", {"a": b"1"})
    for model in ("", "model", "./model", "org/model", "a/b/c", str(tmp_path / "nowhere")):
        assert find(engine(model), Options()) is None


def test_a_copy_that_can_not_be_used_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = cached(tmp_path / "hub", "org/model", a=b"1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (snapshot / "model.safetensors").unlink()
    assert find(engine("org/model"), Options()) is None
    (tmp_path / "hub" / "models--org--model" / "refs" / "main").write_text("another")
    assert find(engine("org/model"), Options()) is None


@pytest.mark.parametrize(
    ("head", "config", "tied", "optional"),
    [
        (b"abc", {"tie_word_embeddings": True}, True, {HEAD}),
        (b"abd", {"tie_word_embeddings": True}, False, set()),
        (b"abc", {"tie_word_embeddings": False}, False, set()),
        (b"abc", {}, None, set()),
    ],
)
def test_a_head_in_a_tied_checkpoint_counts_only_where_it_differs(
    tmp_path: Path, head: bytes, config: dict[str, object], tied: bool | None, optional: set[str]
) -> None:
    write(tmp_path, {EMBED: b"abc", HEAD: head}, **config)
    expected = from_checkpoint(read_index(tmp_path))
    assert expected.tied_head is tied
    assert expected.optional == optional


def test_a_tied_checkpoint_without_a_head_is_tied(tmp_path: Path) -> None:
    write(tmp_path, {EMBED: b"abc"}, tie_word_embeddings=True)
    assert from_checkpoint(read_index(tmp_path)).tied_head is True


UNTRAINED = {
    "model.layers.0.self_attn.rotary_emb.inv_freq",
    "transformer.h.0.attn.bias",
    "transformer.h.0.attn.masked_bias",
    "mtp.layers.0.mlp.up_proj.weight",
}
SHARED = {f"model.layers.1.self_attn.{part}.weight" for part in ("k_proj", "v_proj", "k_norm")}
BEYOND = {"model.layers.2.eh_proj.weight", "model.language_model.layers.2.mlp.up_proj.weight"}
TRAINED = {
    "model.layers.0.self_attn.k_proj.weight",
    "model.layers.1.self_attn.q_proj.weight",
    "transformer.h.0.attn.c_attn.bias",
    "visual.layers.2.mlp.up_proj.weight",
    "lm_head.weight",
}


@pytest.mark.parametrize(
    ("config", "optional"),
    [
        ({}, UNTRAINED),
        ({"num_hidden_layers": 2}, UNTRAINED | BEYOND),
        ({"num_hidden_layers": 2, "num_kv_shared_layers": 1}, UNTRAINED | BEYOND | SHARED),
    ],
)
def test_what_training_code_does_not_hold_is_optional(
    tmp_path: Path, config: dict[str, object], optional: set[str]
) -> None:
    write(tmp_path, dict.fromkeys([*UNTRAINED, *SHARED, *BEYOND, *TRAINED], b"1"), **config)
    assert from_checkpoint(read_index(tmp_path)).optional == optional


def test_a_manifest_can_be_the_expectation() -> None:
    tensor = TensorMeta("a", "float32", (1,))
    assert from_manifest(Manifest((tensor,), ((0, 1),))).tensors == {"a": tensor}


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("lm_head.weight", True),
        ("language_model.lm_head.weight", True),
        ("mtp.lm_head.weight", False),
        ("model.mtp.0.lm_head.weight", False),
        ("lm_head.bias", False),
        ("my_lm_head.weight", False),
    ],
)
def test_the_output_head_is_known_by_name(name: str, head: bool) -> None:
    assert is_head(name) is head
