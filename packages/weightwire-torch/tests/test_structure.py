"""A model that is changed between two rounds: what is sent is what it is made of now, or it is refused in words."""

from __future__ import annotations

import gc
import timeit
import weakref
from collections.abc import Callable

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from transformers import LlamaConfig, LlamaForCausalLM
from weightwire.errors import ManifestError
from weightwire.options import Options
from weightwire_torch.blueprint import Blueprint
from weightwire_torch.sharding import Unsharded
from weightwire_torch.sources import ModuleSource
from weightwire_torch.structure import structure

WIDTH = 16
ROWS = 32
Change = Callable[[LlamaForCausalLM], object]


def llama(*, tied: bool = False) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_attention_heads": 2, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=ROWS, tie_word_embeddings=tied, **sizes))


def random_(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


def adapted(*saved: str, rank: int = 2) -> LoraConfig:
    return LoraConfig(r=rank, target_modules=["q_proj"], modules_to_save=list(saved) or None, init_lora_weights=False)


def sent(source: ModuleSource) -> dict[str, torch.Tensor]:
    """A round, as a session goes through it."""
    manifest = source.manifest()
    tensors = [tensor.clone() for group in range(len(manifest.groups)) for tensor in source.gather(group)]
    assert [tuple(tensor.shape) for tensor in tensors] == [meta.shape for meta in manifest.tensors]
    return dict(zip(manifest.names, tensors, strict=True))


def opened(model: torch.nn.Module) -> tuple[ModuleSource, dict[str, torch.Tensor]]:
    source = ModuleSource(model, Options())
    return source, sent(source)


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [
        name for name in one if one[name].dtype != other[name].dtype or not torch.equal(one[name], other[name])
    ] == []


# Changes of a model that keep its names and shapes, and what they change in what is sent.


def head(model: LlamaForCausalLM) -> None:
    model.lm_head = torch.nn.Linear(WIDTH, ROWS, bias=False)


def layer(model: LlamaForCausalLM) -> None:
    model.model.layers[1] = llama().model.layers[0]


def parameter(model: LlamaForCausalLM) -> None:
    model.model.norm.weight = torch.nn.Parameter(torch.full((WIDTH,), 3.0))


def storage(model: LlamaForCausalLM) -> None:
    model.model.norm.weight.data = torch.full((WIDTH,), 3.0)


def assigned(model: LlamaForCausalLM) -> None:
    model.load_state_dict({name: tensor + 1 for name, tensor in model.state_dict().items()}, assign=True)


def bfloat16(model: LlamaForCausalLM) -> None:
    model.to(torch.bfloat16)


def adapter(model: LlamaForCausalLM) -> None:
    random_(get_peft_model(model, adapted("lm_head")), 1)


def adapter_merged_and_gone(model: LlamaForCausalLM) -> None:
    random_(get_peft_model(model, adapted()), 1).merge_and_unload()


def wrapped(model: LlamaForCausalLM) -> None:
    model.model.layers[0] = checkpoint_wrapper(model.model.layers[0])
    parameter(model)


def compiled(model: LlamaForCausalLM) -> None:
    model.model.layers[0] = torch.compile(model.model.layers[0], backend="eager")
    model.lm_head = torch.compile(torch.nn.Linear(WIDTH, ROWS, bias=False), backend="eager")


KEPT = [
    head, layer, parameter, storage, assigned, bfloat16, adapter, adapter_merged_and_gone, wrapped, compiled
]  # fmt: skip


@pytest.mark.parametrize("change", KEPT)
def test_a_round_brings_what_the_model_is_made_of_now(change: Change) -> None:
    model = llama()
    source, before = opened(model)
    change(model)
    after = sent(source)
    assert any(not torch.equal(before[name], tensor) for name, tensor in after.items())
    assert_equal(after, sent(ModuleSource(model, Options())))


@pytest.mark.parametrize("change", [head, layer, parameter, assigned, bfloat16, adapter_merged_and_gone])
def test_what_is_sent_then_is_what_save_pretrained_would_write(change: Change) -> None:
    model = llama()
    source, _ = opened(model)
    change(model)
    assert_equal(sent(source), model.state_dict())


# Changes that make it another model.


def resized(model: LlamaForCausalLM) -> None:
    model.resize_token_embeddings(ROWS + 8)


def wider_head(model: LlamaForCausalLM) -> None:
    model.lm_head = torch.nn.Linear(WIDTH, ROWS + 1, bias=False)


def tied(model: LlamaForCausalLM) -> None:
    model.lm_head.weight = model.model.embed_tokens.weight


def tied_by_storage(model: LlamaForCausalLM) -> None:
    model.lm_head.weight.data = model.model.embed_tokens.weight.data


def untied(model: LlamaForCausalLM) -> None:
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())


def untied_by_an_adapter(model: LlamaForCausalLM) -> None:
    get_peft_model(model, adapted("lm_head"))


def shorter(model: LlamaForCausalLM) -> None:
    del model.model.layers[1]


def grown(model: LlamaForCausalLM) -> None:
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(ROWS))


def away(model: LlamaForCausalLM) -> None:
    model.to("meta")


def lazy(model: LlamaForCausalLM) -> None:
    model.lm_head = torch.nn.LazyLinear(ROWS, bias=False)


def prompts(model: LlamaForCausalLM) -> None:
    model.model = get_peft_model(model.model, PromptTuningConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=2))


REFUSED: list[tuple[Change, bool, str]] = [
    (resized, False, r"2 of another shape: .*embed_tokens\.weight \(\[40, 16\], was \[32, 16\]\)"),
    (wider_head, False, r"1 of another shape: lm_head\.weight"),
    (tied, False, r"1 gone: lm_head\.weight"),
    (tied_by_storage, False, r"1 gone: lm_head\.weight"),
    (untied, True, r"1 new: lm_head\.weight"),
    (untied_by_an_adapter, True, r"1 new: lm_head\.weight"),
    (shorter, False, r"9 gone: model\.layers\.1\."),
    (grown, False, r"1 new: lm_head\.bias"),
    (away, False, "has no values"),
    (lazy, False, "has no shape yet"),
    (prompts, False, "is a .*PROMPT_TUNING"),
]


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize(("change", "was_tied", "why"), REFUSED)
def test_another_model_is_refused_by_what_changed_and_goes_with_a_new_session(
    change: Change, was_tied: bool, why: str
) -> None:
    model = llama(tied=was_tied)
    source, _ = opened(model)
    change(model)
    for _ in range(2):
        with pytest.raises(ManifestError, match=why) as caught:
            source.manifest()
        assert "weightwire.connect() again, on every rank" in caught.value.hint


def test_what_was_refused_goes_again_once_it_is_undone() -> None:
    model = llama(tied=True)
    source, before = opened(model)
    untied(model)
    with pytest.raises(ManifestError, match="lm_head"):
        source.manifest()
    tied(model)
    assert_equal(sent(source), before)


# Adapters that are switched in a session.


def two_adapters() -> torch.nn.Module:
    model = random_(get_peft_model(llama(), adapted("lm_head", "norm")), 1)
    model.add_adapter("b", adapted("lm_head", "norm", rank=4))
    model.set_adapter("b")
    random_(model, 2)
    model.set_adapter("default")
    return model


def saved(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return sent(ModuleSource(model, Options()))


def test_another_adapter_is_sent_with_the_copies_it_trained() -> None:
    model = two_adapters()
    source, first = opened(model)
    model.set_adapter("b")
    second = sent(source)
    assert_equal(second, saved(model))
    copy = model.base_model.model.lm_head.modules_to_save["b"]
    assert torch.equal(second["lm_head.weight"], copy.weight)
    different = {name for name, tensor in second.items() if not torch.equal(tensor, first[name])}
    assert different == {name for name in first if "lm_head" in name or "norm" in name or "q_proj" in name}
    model.set_adapter("default")
    assert_equal(sent(source), first)


def test_while_adapters_are_switched_off_the_model_is_sent_without_them() -> None:
    model = two_adapters()
    source, first = opened(model)
    with model.disable_adapter():
        assert_equal(sent(source), llama().state_dict())
    assert_equal(sent(source), first)


def test_adapters_that_are_merged_meanwhile_are_sent_all_the_same() -> None:
    model = two_adapters()
    source, first = opened(model)
    model.merge_adapter()
    assert_equal(sent(source), first)


def test_adapters_that_are_taken_out_are_not_sent_any_more() -> None:
    model = two_adapters()
    source, _ = opened(model)
    model.unload()
    assert_equal(sent(source), saved(model))
    query = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(sent(source)[query], llama().state_dict()[query])


def test_an_adapter_that_is_added_and_one_that_is_deleted_are_noticed() -> None:
    model = two_adapters()
    source, _ = opened(model)
    model.delete_adapter("default")
    assert model.active_adapters == ["b"]
    assert_equal(sent(source), saved(model))
    model.add_adapter("c", adapted("lm_head"))
    model.set_adapter("c")
    assert_equal(sent(source), saved(model))


# What decides, and what does not.


def count_of_drawings(source: ModuleSource, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    drawn: list[str] = []
    reading = source._reading
    monkeypatch.setattr(source, "_reading", lambda now: drawn.append("") or reading(now))
    return drawn


@pytest.mark.parametrize("change", [assigned, storage, parameter])
def test_other_values_in_the_same_places_are_no_reason_to_read_the_model_again(change: Change, monkeypatch) -> None:
    model = llama(tied=True)
    source, _ = opened(model)
    drawn = count_of_drawings(source, monkeypatch)
    change(model)
    model.tie_weights()
    sent(source)
    assert drawn == []


def test_a_replaced_module_is_let_go_with_the_next_round() -> None:
    model = llama()
    source, _ = opened(model)
    gone = weakref.ref(model.lm_head)
    head(model)
    sent(source)
    gc.collect()
    assert gone() is None


def test_it_is_cheap() -> None:
    """Against what it saves: one reading of the model."""
    model = llama()
    looked = min(timeit.repeat(lambda: structure(model, Unsharded().traits), number=20, repeat=5))
    drawn = min(timeit.repeat(lambda: Blueprint.of(model, Unsharded().form), number=20, repeat=1))
    assert looked < drawn / 10
