"""Models with adapters: what is sent is what PEFT itself would merge, and the model keeps every bit."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from peft import (
    IA3Config,
    LoHaConfig,
    LoraConfig,
    PeftModel,
    PromptTuningConfig,
    VeraConfig,
    get_peft_model,
)
from transformers import LlamaConfig, LlamaForCausalLM
from weightwire import discovery, negotiate
from weightwire.errors import ManifestError
from weightwire.options import Options

WIDTH = 8
BOTH = ["q", "v"]


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = torch.nn.Linear(WIDTH, WIDTH)
        self.v = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.v(self.q(x)))


class Model(torch.nn.Module):
    """A language model's outline."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(16, WIDTH)
        self.layers = torch.nn.ModuleList(Block() for _ in range(2))
        self.lm_head = torch.nn.Linear(WIDTH, 16, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x)


class Experts(torch.nn.Module):
    """Experts kept in two parameters, as transformers 5 keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Parameter(torch.randn(2, WIDTH, WIDTH))
        self.down = torch.nn.Parameter(torch.randn(2, WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(x @ up @ down for up, down in zip(self.up, self.down, strict=True))


def stirred(model: PeftModel, seed: int = 5) -> PeftModel:
    """With adapters that change something: trained ones do, new ones mostly not."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter.dtype), alpha=0.1)
    assert any("default" in name for name, _ in model.named_parameters())
    return model


def adapted(config: object, dtype: torch.dtype = torch.float32) -> PeftModel:
    torch.manual_seed(0)
    return stirred(get_peft_model(Model().to(dtype), config))


def sent(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """By name, everything that a push of *model* sends."""
    source = negotiate.weight_source(discovery.plugins().registry, model, Options())
    manifest = source.manifest()
    tensors = [tensor.clone() for group in range(len(manifest.groups)) for tensor in source.gather(group)]
    assert [tuple(t.shape) for t in tensors] == [meta.shape for meta in manifest.tensors]
    return dict(zip(manifest.names, tensors, strict=True))


def bits(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


KINDS: dict[str, Callable[[], object]] = {
    "lora": lambda: LoraConfig(target_modules=BOTH),
    "rslora": lambda: LoraConfig(target_modules=BOTH, use_rslora=True),
    "dora": lambda: LoraConfig(target_modules=BOTH, use_dora=True),
    "biases": lambda: LoraConfig(target_modules=BOTH, bias="all"),
    "embedding": lambda: LoraConfig(target_modules=["embed", "q"]),
    "modules to save": lambda: LoraConfig(target_modules=["q"], modules_to_save=["lm_head", "norm"]),
    "tokens": lambda: LoraConfig(target_modules=["q"], trainable_token_indices={"embed": [1, 3]}),
    "loha": lambda: LoHaConfig(target_modules=BOTH),
    "ia3": lambda: IA3Config(target_modules=BOTH, feedforward_modules=["q"]),
    "vera": lambda: VeraConfig(target_modules=["v"], r=4),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sent_is_what_peft_merges_and_the_model_keeps_every_bit(kind: str, dtype: torch.dtype) -> None:
    model = adapted(KINDS[kind](), dtype)
    before = bits(model)
    found = sent(model)
    assert_same(bits(model), before)
    expected = copy.deepcopy(model).merge_and_unload().state_dict()
    assert_same(found, dict(expected))
    assert any(not torch.equal(found[name], tensor) for name, tensor in Model().to(dtype).state_dict().items())


def test_the_training_goes_on_as_if_nothing_had_been_sent() -> None:
    one, other = adapted(KINDS["dora"]()), adapted(KINDS["dora"]())
    for model in (one, other):
        if model is one:
            sent(model)
        model(torch.arange(6)).square().mean().backward()
    gradients = {name: p.grad for name, p in one.named_parameters() if p.grad is not None}
    assert gradients
    assert_same(gradients, {name: p.grad for name, p in other.named_parameters() if p.grad is not None})


def test_of_two_adapters_the_active_one_is_merged() -> None:
    model = adapted(KINDS["modules to save"]())
    model.add_adapter("second", KINDS["modules to save"]())
    first = sent(model)
    model.set_adapter("second")
    stirred(model, seed=6)
    second = sent(model)
    assert_same(second, dict(copy.deepcopy(model).merge_and_unload().state_dict()))
    assert not torch.equal(first["layers.0.q.weight"], second["layers.0.q.weight"])
    assert not torch.equal(first["lm_head.weight"], second["lm_head.weight"])
    model.set_adapter("default")
    assert_same(sent(model), first)


def test_while_adapters_are_switched_off_the_model_is_sent_without_them() -> None:
    torch.manual_seed(0)
    plain = bits(Model())
    model = adapted(KINDS["modules to save"]())
    with model.disable_adapter():
        assert_same(sent(model), plain)
    assert not torch.equal(sent(model)["layers.0.q.weight"], plain["layers.0.q.weight"])


def test_what_is_merged_already_is_not_merged_twice() -> None:
    model = adapted(KINDS["lora"]())
    expected = sent(model)
    model.merge_adapter()
    assert_same(sent(model), expected)


def test_adapters_of_parameters_nested_in_each_other_are_all_merged() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(Experts(), torch.nn.Linear(WIDTH, WIDTH))
    config = LoraConfig(r=2, target_modules=["1"], target_parameters=["0.up", "0.down"])
    model = stirred(get_peft_model(model, config))
    before = bits(model)
    found = sent(model)
    assert_same(bits(model), before)
    assert_same(found, dict(copy.deepcopy(model).merge_and_unload().state_dict()))
    assert set(found) == {"0.up", "0.down", "1.weight", "1.bias"}


def test_learned_prompts_are_refused_by_name() -> None:
    sizes = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_attention_heads": 1, "num_hidden_layers": 1}
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=16, **sizes))
    prompts = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    with pytest.raises(ManifestError, match=r"'default' is a .*PROMPT_TUNING"):
        sent(get_peft_model(llama, prompts))
