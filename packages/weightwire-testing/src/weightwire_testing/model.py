"""A small, real causal transformer in plain PyTorch: the Llama architecture, with Hugging Face's checkpoint names.

It is what the reference engine serves and what the demo trains. A checkpoint written here loads into transformers and
into vLLM; the arithmetic follows transformers' eager Llama, so that log-probabilities agree to float32 rounding.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from weightwire.errors import ConfigurationError

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of a model.

    Attributes:
        vocab_size: rows of the embedding; at least 256, so that bytes can be token ids.
        hidden_size: width of the residual stream.
        layers: number of decoder layers.
        heads: query heads.
        kv_heads: key and value heads; divides *heads*.
        head_dim: width of a head; 32 is the smallest that vLLM's CPU attention takes.
        intermediate_size: width of the feed-forward layer.
        max_positions: the longest sequence, in tokens.
        tied: the output head shares the embedding's weight.
        rope_theta: base of the rotary frequencies.
        norm_eps: epsilon of the norms.
        init_std: standard deviation of fresh weights; large, so that two seeds give clearly different outputs.
    """

    vocab_size: int = 512
    hidden_size: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    intermediate_size: int = 256
    max_positions: int = 512
    tied: bool = False
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6
    init_std: float = 0.2


class KVCache:
    """Keys and values of the tokens seen so far, by layer, each of shape ``(batch, kv_heads, tokens, head_dim)``."""

    def __init__(self, layers: list[tuple[Tensor, Tensor]] | None = None) -> None:
        """Start empty, or with what another cache held."""
        self.layers = layers or []

    @property
    def length(self) -> int:
        """Tokens held."""
        return self.layers[0][0].shape[2] if self.layers else 0

    def head(self, tokens: int) -> KVCache:
        """A cache of the first *tokens* tokens alone; this one stays as it is."""
        return KVCache([(key[:, :, :tokens], value[:, :, :tokens]) for key, value in self.layers])

    def extend(self, layer: int, *, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append one layer's new keys and values; returns all of them, old and new."""
        if layer == len(self.layers):
            self.layers.append((key, value))
        else:
            old_key, old_value = self.layers[layer]
            self.layers[layer] = torch.cat((old_key, key), dim=2), torch.cat((old_value, value), dim=2)
        return self.layers[layer]


class _Norm(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape.hidden_size))
        self.eps = shape.norm_eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _rotary(shape: ModelShape, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of shape ``(tokens, head_dim)``, in float32: made anew, never stored, so never to be sent."""
    exponent = torch.arange(0, shape.head_dim, 2, dtype=torch.float32, device=positions.device) / shape.head_dim
    angles = positions.float()[:, None] * (1.0 / shape.rope_theta**exponent)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


class _Attention(nn.Module):
    def __init__(self, shape: ModelShape, index: int) -> None:
        super().__init__()
        self.shape, self.index = shape, index
        self.q_proj = nn.Linear(shape.hidden_size, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden_size, bias=False)

    def _heads(self, projected: Tensor) -> Tensor:
        batch, tokens, _ = projected.shape
        return projected.view(batch, tokens, -1, self.shape.head_dim).transpose(1, 2)

    def forward(self, x: Tensor, positions: Tensor, cache: KVCache | None) -> Tensor:
        cos, sin = (part.to(x.dtype) for part in _rotary(self.shape, positions))
        query = _rotate(self._heads(self.q_proj(x)), cos, sin)
        key, value = _rotate(self._heads(self.k_proj(x)), cos, sin), self._heads(self.v_proj(x))
        if cache is not None:
            key, value = cache.extend(self.index, key=key, value=value)
        groups = self.shape.heads // self.shape.kv_heads
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        scores = query @ key.transpose(2, 3) * self.shape.head_dim**-0.5
        ahead = torch.arange(key.shape[2], device=x.device)[None, :] > positions[:, None]
        scores = scores.masked_fill(ahead, torch.finfo(scores.dtype).min)
        mixed = scores.softmax(dim=-1, dtype=torch.float32).to(x.dtype) @ value
        return torch.as_tensor(self.o_proj(mixed.transpose(1, 2).flatten(2)))


class _FeedForward(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gated = nn.functional.silu(self.gate_proj(x)) * self.up_proj(x)
        return torch.as_tensor(self.down_proj(gated))


class _Layer(nn.Module):
    def __init__(self, shape: ModelShape, index: int) -> None:
        super().__init__()
        self.input_layernorm = _Norm(shape)
        self.self_attn = _Attention(shape, index)
        self.post_attention_layernorm = _Norm(shape)
        self.mlp = _FeedForward(shape)

    def forward(self, x: Tensor, positions: Tensor, cache: KVCache | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), positions, cache)
        return torch.as_tensor(x + self.mlp(self.post_attention_layernorm(x)))


class _Decoder(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(_Layer(shape, index) for index in range(shape.layers))
        self.norm = _Norm(shape)

    def forward(self, ids: Tensor, cache: KVCache | None) -> Tensor:
        seen = cache.length if cache is not None else 0
        positions = torch.arange(seen, seen + ids.shape[1], device=ids.device)
        x: Tensor = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, positions, cache)
        return torch.as_tensor(self.norm(x))


class TinyLlama(nn.Module):
    """A causal language model whose ``state_dict`` has a Hugging Face Llama checkpoint's names."""

    def __init__(self, shape: ModelShape | None = None, *, seed: int = 0) -> None:
        """Make fresh weights.

        Args:
            shape: the sizes; the defaults make about 430 thousand parameters.
            seed: of the weights; the global generator is left alone.
        """
        super().__init__()
        self.shape = shape or ModelShape()
        with torch.random.fork_rng(devices=[]):  # torch's own initial values, overwritten below
            self.model = _Decoder(self.shape)
            self.lm_head = nn.Linear(self.shape.hidden_size, self.shape.vocab_size, bias=False)
        if self.shape.tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0.0, self.shape.init_std, generator=generator)

    def forward(self, ids: Tensor, cache: KVCache | None = None) -> Tensor:
        """Logits for every position.

        Args:
            ids: token ids of shape ``(batch, tokens)``.
            cache: what came before *ids*; it is extended.

        Returns:
            Logits of shape ``(batch, tokens, vocab_size)``.
        """
        return torch.as_tensor(self.lm_head(self.model(ids, cache)))

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """The tensors of a checkpoint, by name, in order; a tied head is left out, as ``save_pretrained`` does."""
        named = {name: tensor.detach() for name, tensor in self.state_dict().items()}
        return {name: tensor for name, tensor in named.items() if not (self.shape.tied and name == HEAD)}


def _config(model: TinyLlama) -> dict[str, Any]:
    shape = model.shape
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "dtype": str(model.lm_head.weight.dtype).removeprefix("torch."),
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": shape.init_std,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_positions,
        "mlp_bias": False,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,  # read by transformers 4 (vLLM up to 0.20)
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},  # read by transformers 5
        "tie_word_embeddings": shape.tied,
        "use_cache": True,
        "vocab_size": shape.vocab_size,
    }


def save_checkpoint(model: TinyLlama, directory: Path) -> Path:
    """Write ``config.json``, ``generation_config.json`` and ``model.safetensors``; no tokenizer.

    A server takes it with ``--skip-tokenizer-init`` and prompts of token ids.

    Args:
        model: the model.
        directory: where to; made if it is missing.

    Returns:
        *directory*.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous().cpu() for name, tensor in model.checkpoint_tensors().items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    for name, content in (("config.json", _config(model)), ("generation_config.json", {"do_sample": False})):
        (directory / name).write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2))
    return directory


class _Config(msgspec.Struct, kw_only=True):
    """The fields of ``config.json`` that :func:`load_checkpoint` reads."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    rope_theta: float
    rms_norm_eps: float
    initializer_range: float
    dtype: str


def load_checkpoint(directory: Path) -> TinyLlama:
    """Read what :func:`save_checkpoint` wrote.

    Raises:
        ConfigurationError: a file is missing or damaged, ``config.json`` is not one of ours, or a tensor is missing,
            unknown or of another shape; says which.
    """
    try:
        return _loaded(directory)
    except _UNREADABLE as error:
        raise ConfigurationError(
            f"{directory} can't be read as a checkpoint of this small model: {type(error).__name__}: {error}",
            hint="write one: weightwire_testing.model.save_checkpoint(TinyLlama(), directory)",
        ) from error


_UNREADABLE = (
    OSError, msgspec.MsgspecError, SafetensorError, RuntimeError, LookupError, ValueError, TypeError, AttributeError
)  # fmt: skip
"""What files, formats, torch and a model raise of contents that are not theirs."""


def _loaded(directory: Path) -> TinyLlama:
    config = msgspec.json.decode((directory / "config.json").read_bytes(), type=_Config)
    shape = ModelShape(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
        max_positions=config.max_position_embeddings,
        tied=config.tie_word_embeddings,
        rope_theta=config.rope_theta,
        norm_eps=config.rms_norm_eps,
        init_std=config.initializer_range,
    )
    tensors = load_file(directory / "model.safetensors")
    if shape.tied:
        tensors[HEAD] = tensors[EMBEDDING]
    model = TinyLlama(shape).to(getattr(torch, config.dtype))
    model.load_state_dict(tensors)
    return model


def fingerprint(tensors: dict[str, Tensor]) -> str:
    """A name for weights: equal for equal names, dtypes, shapes and bytes, in whatever order."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
