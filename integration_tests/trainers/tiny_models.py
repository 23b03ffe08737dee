"""Models of transformers, a few hundred thousand parameters each, made from a config: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

TEXT = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 14,
}


def qwen3() -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**TEXT, tie_word_embeddings=False))


def tied_llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**TEXT, tie_word_embeddings=True))


def qwen3_moe() -> PreTrainedModel:
    experts = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**TEXT, **experts, mlp_only_layers=[], tie_word_embeddings=False))


def qwen25_vl() -> PreTrainedModel:
    vision = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "out_hidden_size": 32,
        "fullatt_block_indexes": [1],
    }  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    text = {**TEXT, "rope_parameters": rope, "tie_word_embeddings": False}
    return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision))


def gemma3() -> PreTrainedModel:
    text = {**TEXT, "layer_types": ["full_attention", "sliding_attention"]}
    config = Gemma3Config(text_config=text, vision_config=VISION, mm_tokens_per_image=4)
    return Gemma3ForConditionalGeneration(config)


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    make.__name__: make for make in (qwen3, tied_llama, qwen3_moe, qwen25_vl, gemma3)
}


def layers(model: PreTrainedModel) -> list[torch.nn.Module]:
    """The decoder layers, and the blocks of a vision tower."""
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    return [layer for found in lists for layer in found if any(True for _ in layer.children())]
