from __future__ import annotations

from importlib.metadata import distributions
from pathlib import Path

import pytest
import torch
from weightwire.errors import ConfigurationError
from weightwire_testing.model import HEAD, KVCache, ModelShape, TinyLlama, load_checkpoint, save_checkpoint

IDS = torch.tensor([[1, 2, 3, 250, 17, 17, 9, 0]])

needs_transformers = pytest.mark.skipif(
    not any(found.name == "transformers" for found in distributions()),
    reason="transformers is in the workspace's group `real`: uv sync --group real",
)


@needs_transformers
@pytest.mark.parametrize("tied", [True, False])
def test_logits_agree_with_transformers_loading_the_saved_checkpoint(tied: bool, tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM  # noqa: PLC0415 - seconds to import, and absent outside the workspace

    ours = TinyLlama(ModelShape(tied=tied, layers=3, kv_heads=1), seed=5)
    theirs, report = LlamaForCausalLM.from_pretrained(
        save_checkpoint(ours, tmp_path), dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    with torch.no_grad():
        difference = (ours(IDS) - theirs(IDS).logits).abs().max()
    assert difference < 1e-5


@pytest.mark.parametrize("tied", [True, False])
def test_a_loaded_checkpoint_is_the_saved_model(tied: bool, tmp_path: Path) -> None:
    saved = TinyLlama(ModelShape(tied=tied), seed=1)
    loaded = load_checkpoint(save_checkpoint(saved, tmp_path))
    assert loaded.shape == saved.shape
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), saved.parameters(), strict=True))
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) is tied


def test_a_bfloat16_checkpoint_keeps_its_dtype(tmp_path: Path) -> None:
    loaded = load_checkpoint(save_checkpoint(TinyLlama().bfloat16(), tmp_path))
    assert {p.dtype for p in loaded.parameters()} == {torch.bfloat16}


def test_a_tied_head_is_not_in_the_checkpoint() -> None:
    assert HEAD not in TinyLlama(ModelShape(tied=True)).checkpoint_tensors()
    assert HEAD in TinyLlama(ModelShape(tied=False)).checkpoint_tensors()


def test_a_cache_gives_the_logits_of_the_whole_sequence() -> None:
    model, cache = TinyLlama(seed=2), KVCache()
    with torch.no_grad():
        whole = model(IDS)
        parts = torch.cat([model(IDS[:, :3], cache), model(IDS[:, 3:4], cache), model(IDS[:, 4:], cache)], dim=1)
    assert cache.length == IDS.shape[1]
    assert torch.allclose(whole, parts, atol=1e-5)


def test_the_head_of_a_cache_leaves_the_cache_alone() -> None:
    model, cache = TinyLlama(seed=2), KVCache()
    with torch.no_grad():
        whole = model(IDS, cache)
        again = model(IDS[:, 5:], cache.head(5))
    assert cache.length == IDS.shape[1]
    assert torch.allclose(whole[:, 5:], again, atol=1e-5)


def test_seeds_differ_and_repeat_and_leave_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    with torch.no_grad():
        one, same, other = (TinyLlama(seed=seed)(IDS) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert (one - other).abs().max() > 1
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_foreign_config_is_refused(tmp_path: Path) -> None:
    save_checkpoint(TinyLlama(), tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "other"}')
    with pytest.raises(ConfigurationError, match="vocab_size"):
        load_checkpoint(tmp_path)


def test_a_checkpoint_without_a_tensor_is_refused(tmp_path: Path) -> None:
    save_checkpoint(TinyLlama(ModelShape(layers=1)), tmp_path)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"num_hidden_layers": 1', '"num_hidden_layers": 2'))
    with pytest.raises(ConfigurationError, match=r"layers\.1"):
        load_checkpoint(tmp_path)
