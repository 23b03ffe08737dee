"""Models made on the spot: two small checkpoints that differ, and shapes without weights."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
import torch

TEXT = [11, 222, 33, 444, 55, 166, 77, 388, 99, 110, 121, 32, 143, 254, 365, 76]
"""The fixed text, as token ids."""

GOES_ON = 8
"""Tokens that a server puts behind it."""

SMALL = {
    "hidden_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 1024,
    "vocab_size": 512,
    "tie_word_embeddings": False,
}
SHAPES: dict[str, dict[str, Any]] = {
    "small": SMALL,
    "0.6b": {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "8b": {
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "vocab_size": 151936,
        "tie_word_embeddings": False,
    },
}
SPREAD_OF_SHAPES = 0.03
SPREAD = 0.06  # of the weights: wide enough for log-probabilities that differ from model to model


def config(shape: dict[str, Any]) -> Any:
    """A Qwen3 configuration."""
    from transformers import Qwen3Config  # noqa: PLC0415 - seconds, and not every experiment needs it

    made = Qwen3Config(**shape, max_position_embeddings=4096)
    made.architectures = ["Qwen3ForCausalLM"]
    made.dtype = torch.bfloat16
    return made


def small_model(seed: int, device: str) -> Any:
    """A model with weights of its own."""
    from transformers import Qwen3ForCausalLM  # noqa: PLC0415

    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config(SMALL | {"initializer_range": SPREAD})).to(torch.bfloat16)
    return model.to(device).eval()


def shaped_model(name: str, device: str) -> Any:
    """A model of the shape *name*, with whatever is in its memory for weights."""
    from transformers import Qwen3ForCausalLM  # noqa: PLC0415

    with torch.device(device):
        torch.set_default_dtype(torch.bfloat16)
        try:
            return Qwen3ForCausalLM(config(SHAPES[name])).eval()
        finally:
            torch.set_default_dtype(torch.float32)


def fill(tensors: Iterable[torch.Tensor], seed: int) -> None:
    """Write weights into *tensors*: the same from the same seed, and so wide that log-probabilities tell them apart."""
    written = list(tensors)
    dice = torch.Generator(written[0].device).manual_seed(seed)
    for tensor in written:
        with torch.no_grad():
            if tensor.dim() > 1:
                tensor.normal_(0.0, SPREAD_OF_SHAPES, generator=dice)
            else:
                tensor.uniform_(0.5, 1.5, generator=dice)


def save_small(directory: Path, seed: int) -> str:
    """Write the checkpoint of :func:`small_model`."""
    small_model(seed, "cpu").save_pretrained(directory)
    tokenizer(SMALL["vocab_size"]).save_pretrained(directory)
    return str(directory)


def save_shape(directory: Path, name: str) -> str:
    """Write all of a checkpoint but its weights, for a server with random ones."""
    config(SHAPES[name]).save_pretrained(directory)
    tokenizer(SHAPES[name]["vocab_size"]).save_pretrained(directory)
    return str(directory)


def tokenizer(words: int) -> Any:
    """Of numbers: a word for each token."""
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    made = Tokenizer(models.WordLevel({f"t{i}": i for i in range(words)}, unk_token="t0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="t0", eos_token="t1", pad_token="t2")


@dataclass(frozen=True)
class Said:
    """What a server said.

    Attributes:
        tokens: the fixed text, and the few that the server put behind it.
        logprobs: of each token but the first. Those of the text come from a prefill, the others from decoding: where
            the server uses CUDA graphs, from a graph.
    """

    tokens: list[int]
    logprobs: list[float]


def said(url: str, within: float = 60.0) -> Said:
    """Let the server read the text and go on, in so many seconds."""
    body = {"prompt": TEXT, "max_tokens": GOES_ON, "temperature": 0, "ignore_eos": True, "prompt_logprobs": 0}
    body |= {"logprobs": 0, "return_tokens_as_token_ids": True}
    reply = requests.post(f"{url}/v1/completions", json=body, timeout=within)
    if not reply.ok:
        raise RuntimeError(f"a completion was answered with {reply.status_code}: {reply.text[:300]}")
    choice = json.loads(reply.text)["choices"][0]
    read = [row[str(token)]["logprob"] for token, row in zip(TEXT[1:], choice["prompt_logprobs"][1:], strict=True)]
    written = [int(token.removeprefix("token_id:")) for token in choice["logprobs"]["tokens"]]
    return Said(TEXT + written, read + choice["logprobs"]["token_logprobs"])


def expected(model: Any, tokens: list[int]) -> list[float]:
    """The log-probability of each token but the first, by the trainer's own forward."""
    device = next(model.parameters()).device
    with torch.no_grad():
        logits = model(torch.tensor([tokens], device=device)).logits[0, :-1].float()
    chosen = torch.tensor(tokens[1:], device=device)
    return logits.log_softmax(-1).gather(1, chosen[:, None])[:, 0].tolist()


def off(url: str, model: Any) -> float:
    """How far what the server says is from what *model* says of the same tokens, at most."""
    answer = said(url)
    return apart(answer.logprobs, expected(model, answer.tokens))


def apart(one: list[float], other: list[float]) -> float:
    """The largest difference."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))
