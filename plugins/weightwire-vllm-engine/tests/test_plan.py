"""What a plan is recorded from, what is said against one, and that it writes what the loaders would have written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from weightwire.messages import PackGeometry, TensorMeta
from weightwire_torch.framing import packs, raw
from weightwire_vllm_engine import plain
from weightwire_vllm_engine.landing import Landing
from weightwire_vllm_engine.plan import Plan, UnplannableError
from weightwire_vllm_engine.proof import Proof, same_bits
from weightwire_vllm_engine.recording import record

ROWS, WIDTH, INNER, PADDED = 10, 8, 12, 16

METAS = (
    TensorMeta("embed.weight", "float32", (ROWS, WIDTH)),
    TensorMeta("q.weight", "float32", (WIDTH, WIDTH)),
    TensorMeta("k.weight", "float32", (4, WIDTH)),
    TensorMeta("v.weight", "float32", (4, WIDTH)),
    TensorMeta("down.weight", "float32", (WIDTH, INNER)),
    TensorMeta("norm.weight", "bfloat16", (WIDTH,)),
    TensorMeta("another.stage.weight", "float32", (3,)),
)


def method(module: str, name: str) -> type:
    """A class by the name that vLLM has for one."""
    return type(name, (), {"__module__": f"vllm.model_executor.layers.{module}", "__qualname__": name})


PLAIN = method("linear", "UnquantizedLinearMethod")
QUANTISED = method("quantization.fp8", "Fp8LinearMethod")


def weight(*shape: int, load: Callable[..., None]) -> nn.Parameter:
    made = nn.Parameter(torch.zeros(shape), requires_grad=False)
    made.weight_loader = load
    return made


class Part(nn.Module):
    def __init__(self, *shape: int, load: Callable[..., None]) -> None:
        super().__init__()
        self.weight = weight(*shape, load=load)
        self.quant_method = PLAIN()


class Model(nn.Module):
    """Loaded as vLLM's models are: the second of two tensor-parallel workers, with every kind of loader."""

    rank = 1

    def __init__(self) -> None:
        super().__init__()
        self.embed = Part(PADDED // 2, WIDTH, load=self._embed)
        self.qkv = Part(WIDTH, WIDTH, load=self._rows)
        self.down = Part(WIDTH, INNER // 2, load=self._columns)
        self.norm = Part(WIDTH, load=lambda held, given: held.data.copy_(given))
        self.head = self.embed  # tied
        self.register_buffer("angles", torch.ones(3), persistent=False)
        self.missing = {"another.stage.weight"}

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        shards = {"q": (0, 4), "k": (4, 2), "v": (6, 2)}
        for name, tensor in weights:
            part = name.partition(".")[0]
            if name in self.missing:
                continue
            if part in shards:
                held = self.qkv.weight
                held.weight_loader(held, tensor, *shards[part])
            else:
                held = getattr(self, part).weight
                held.weight_loader(held, tensor)
        return set()

    def _embed(self, held: nn.Parameter, given: Tensor) -> None:
        mine = given.narrow(0, PADDED // 2 * self.rank, ROWS - PADDED // 2)
        held[: mine.shape[0]].data.copy_(mine)
        held[mine.shape[0] :].data.fill_(0)

    def _rows(self, held: nn.Parameter, given: Tensor, offset: int, size: int) -> None:
        held.data.narrow(0, offset, size).copy_(given.narrow(0, self.rank * size, size))

    def _columns(self, held: nn.Parameter, given: Tensor) -> None:
        size = held.shape[1]
        held.data.copy_(given.narrow(1, self.rank * size, size))


def tensors(seed: int) -> list[Tensor]:
    dice = torch.Generator().manual_seed(seed)
    made = [torch.randn(meta.shape, generator=dice) for meta in METAS]
    return [one.to(getattr(torch, meta.dtype)) for one, meta in zip(made, METAS, strict=True)]


def named(seed: int) -> list[tuple[str, Tensor]]:
    return [(meta.name, tensor) for meta, tensor in zip(METAS, tensors(seed), strict=True)]


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.named_parameters()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def loaded(seed: int) -> Model:
    model = Model()
    model.load_weights(named(seed))
    return model


def land(plan: Plan, seed: int, *, buffer_bytes: int = 300, shift: int = 0) -> list[Landing]:
    """Send the weights of *seed* through packs, into the model that *plan* was recorded from."""
    made = []
    by_name = dict(named(seed))
    for pack in packs(METAS, PackGeometry(packed=True, buffer_bytes=buffer_bytes, num_buffers=1)):
        memory = torch.cat([torch.zeros(shift, dtype=torch.uint8), *[raw(by_name[meta.name]) for meta in pack.tensors]])
        made.append(Landing(pack, memory[shift:], plan=plan, first=0))
        made[-1].land()
    return made


def test_recording_changes_nothing_in_the_model():
    model = loaded(1)
    before = state(model)
    record(model, METAS)
    assert equal(state(model), before)


@pytest.mark.parametrize("buffer_bytes", [1, 300, 100_000])
def test_what_lands_is_what_the_loaders_would_have_loaded_and_no_storage_moves(buffer_bytes):
    model = loaded(1)
    where = {name: tensor.data_ptr() for name, tensor in model.named_parameters()}
    plan = record(model, METAS)
    land(plan, 2, buffer_bytes=buffer_bytes)
    assert equal(state(model), state(loaded(2)))
    land(plan, 1, buffer_bytes=buffer_bytes)
    assert equal(state(model), state(loaded(1)))
    assert {name: tensor.data_ptr() for name, tensor in model.named_parameters()} == where
    assert plan.moved == ""


def test_a_tensor_that_lies_askew_in_its_pack_lands_too_but_not_from_memory_of_the_first_time():
    model = loaded(1)
    assert not any(landing.lasts for landing in land(record(model, METAS), 2, shift=1))
    assert equal(state(model), state(loaded(2)))


def test_a_tensor_of_another_stage_lands_nowhere():
    assert record(loaded(1), METAS).pieces[-1] == ()


def test_what_moved_is_named():
    model = loaded(1)
    plan = record(model, METAS)
    model.down.weight.data = model.down.weight.data.clone()
    assert plan.moved == "down.weight"
    model.norm.weight = nn.Parameter(model.norm.weight.data, requires_grad=False)
    assert {home.name for home in plan.all_homes() if not home.settled} == {"norm.weight"}


def replaced(part: str, load) -> Model:
    model = loaded(1)
    getattr(model, part).weight.weight_loader = load
    return model


SPOILT = {
    "computed": (
        replaced("norm", lambda held, given: held.data.copy_(given.float() + 1)),
        r"computes with norm\.weight",
    ),
    "computed from the model": (replaced("norm", lambda held, given: held.data.copy_(held * 2)), "computes with norm"),
    "made up": (replaced("norm", lambda held, given: held.data.copy_(torch.ones(8))), "none of what was given"),
    "compared": (replaced("norm", lambda held, given: torch.equal(held.float(), held)), "computes with norm"),
    "computed in what was given": (
        replaced("norm", lambda held, given: held.data.copy_(given.mul_(2))),
        r"norm\.weight is not copied into, but changed by aten\.mul_",
    ),
    "several at once": (
        replaced("norm", lambda held, given: torch._foreach_zero_([held.data])),
        r"changed by aten\._foreach_zero_",
    ),
    "written as a result": (
        replaced("norm", lambda held, given: torch.add(torch.ones(8), 1, out=held.data)),
        r"norm\.weight is not copied into, but changed by aten\.add\.out",
    ),
    "as other numbers": (
        replaced("norm", lambda held, given: held.data.view(torch.int32).copy_(given.view(torch.int16))),
        "as other numbers",
    ),
    "changed in place": (replaced("norm", lambda held, given: held.data.add_(1)), r"changed by aten\.add_"),
    "looked into": (replaced("norm", lambda held, given: held.data.fill_(given[0].item())), "can't be followed"),
    "half of it": (replaced("norm", lambda held, given: held.data[:4].copy_(given[:4])), "4 of 8 elements of norm"),
    "twice": (replaced("norm", lambda held, given: (held.data.zero_(), held.data.copy_(given))), "loaded twice"),
    "spread": (replaced("norm", lambda held, given: held.data.copy_(given[:1])), "spread out"),
    "strided": (replaced("down", lambda held, given: held.data[:, :2].copy_(given[:, :2])), "not lie in one run"),
    "skipped": (replaced("norm", lambda held, given: None), "0 of 8 elements of norm"),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_a_loader_that_does_more_than_copy_is_told_apart_and_changes_nothing(kind):
    model, words = SPOILT[kind]
    before = state(model)
    with pytest.raises(UnplannableError, match=words):
        record(model, METAS)
    assert equal(state(model), before)


def test_a_module_that_keeps_what_it_is_given_is_no_plan():
    model = loaded(1)
    load = model.norm.weight.weight_loader

    def keep(held: nn.Parameter, given: Tensor) -> None:
        load(held, given)
        model.norm.kept = given[:2]

    model.norm.weight.weight_loader = keep
    with pytest.raises(UnplannableError, match="norm keeps what it is given, as kept"):
        record(model, METAS)


HIDDEN = {
    "a list": lambda model, given: model.norm.__setattr__("kept", [given]),
    "a dictionary": lambda model, given: model.norm.__setattr__("kept", {"of the norm": given[2:]}),
    "the parameter": lambda model, given: model.norm.weight.__setattr__("kept", given),
}


@pytest.mark.parametrize("place", HIDDEN)
def test_what_is_given_may_not_be_kept_in_a_container_or_with_a_parameter_either(place):
    model = loaded(1)
    load = model.norm.weight.weight_loader

    def keep(held: nn.Parameter, given: Tensor) -> None:
        load(held, given)
        HIDDEN[place](model, given)

    model.norm.weight.weight_loader = keep
    with pytest.raises(UnplannableError, match="norm keeps what it is given, as"):
        record(model, METAS)


def test_a_loader_that_sets_what_it_is_given_in_a_parameters_place_leaves_the_model_as_it_was():
    model = loaded(1)
    runtime = model.norm.weight

    def replace(held: nn.Parameter, given: Tensor) -> None:
        model.norm.weight = nn.Parameter(given, requires_grad=False)

    model.norm.weight.weight_loader = replace
    with pytest.raises(UnplannableError, match=r"norm\.weight is replaced"):
        record(model, METAS)
    assert model.norm.weight is runtime


def test_a_name_that_the_model_does_not_know_is_no_plan():
    metas = (*METAS[:-1], METAS[-1].__class__("unheard.of.weight", "float32", (3,)))
    with pytest.raises(UnplannableError, match="AttributeError"):
        record(loaded(1), metas)


def test_a_model_in_the_middle_of_a_reload_or_without_its_weights_is_no_plan():
    model = loaded(1)
    model.norm.weight = nn.Parameter(torch.empty(8, device="meta"), requires_grad=False)
    with pytest.raises(UnplannableError, match=r"norm\.weight has no memory"):
        record(model, METAS)
    model.norm.weight = nn.Parameter(torch.empty(0), requires_grad=False)
    with pytest.raises(UnplannableError, match="kept packed"):
        record(model, METAS)


def test_parameters_that_share_memory_are_no_plan():
    model = loaded(1)
    model.norm.weight = nn.Parameter(model.qkv.weight.data[0], requires_grad=False)
    with pytest.raises(UnplannableError, match="one piece of memory"):
        record(model, METAS)


def test_a_buffer_that_is_a_view_of_a_parameter_changes_nothing():
    model = loaded(1)
    model.embed.register_buffer("view_of_another", model.norm.weight.data, persistent=False)
    land(record(model, METAS), 2)
    assert equal(state(model), state(loaded(2)))


def test_a_plan_is_proven_by_what_the_loaders_made_of_the_same_tensors():
    model = loaded(1)
    proof = Proof(record(model, METAS))
    model.load_weights(named(2))
    proof.see(0, tensors(2)[:3])
    proof.see(3, tensors(2)[3:])
    assert proof.end()


def test_a_module_that_the_reload_made_something_else_of_is_named():
    model = loaded(1)
    proof = Proof(record(model, METAS))
    model.load_weights(named(2))
    model.qkv.weight.data.copy_(model.qkv.weight.data.flip(0))
    proof.see(0, tensors(2))
    with pytest.raises(UnplannableError, match=r"qkv\.weight is not what a copy would make it"):
        proof.end()


def test_a_module_is_compared_only_once_it_is_put_back():
    model = loaded(1)
    proof = Proof(record(model, METAS))
    runtime = model.norm.weight
    model.norm.weight = nn.Parameter(torch.empty(8, device="meta"), requires_grad=False)  # as a reload does
    proof.see(0, tensors(2)[:0])
    proof.see(5, tensors(2)[5:6])
    assert proof.failure == ""
    runtime.data.copy_(tensors(2)[5])
    model.norm.weight = runtime
    model.load_weights(named(2)[:5])
    proof.see(0, tensors(2)[:5])
    proof.see(6, tensors(2)[6:])
    assert proof.end()


def test_a_round_that_left_something_out_proves_nothing():
    model = loaded(1)
    proof = Proof(record(model, METAS))
    proof.see(0, tensors(1)[:6])
    assert not proof.end()


def test_bits_are_compared_and_not_numbers():
    assert same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert same_bits(torch.tensor([1.5], dtype=torch.bfloat16), torch.tensor([1.5]))


def test_a_model_of_plain_parts_may_have_a_plan():
    plain.check(loaded(1))


class Prepares(Part):
    def process_weights_after_loading(self) -> None: ...


def test_what_prepares_its_weights_is_named():
    model = loaded(1)
    model.down.quant_method = QUANTISED()
    with pytest.raises(UnplannableError, match="down, a Part, is prepared by Fp8LinearMethod"):
        plain.check(model)
    model.down = Prepares(1, load=print)
    with pytest.raises(UnplannableError, match="down, a Prepares, prepares its weights by itself"):
        plain.check(model)


def test_an_attention_with_sinks_is_named():
    model = loaded(1)
    model.down.impl = SimpleNamespace(sinks=None)
    plain.check(model)
    model.down.impl.sinks = model.norm.weight
    with pytest.raises(UnplannableError, match="down, a Part, keeps sinks"):
        plain.check(model)


def test_a_packed_copy_is_found_where_vllm_keeps_it():
    model = loaded(1)
    packed = model.down.weight.clone()
    model.down.cpu_linear = nn.functional.linear
    plain.check(model)
    model.down.cpu_linear = lambda *given: nn.functional.linear(*given)  # noqa: PLW0108 - vLLM's own is one, too
    plain.check(model)
    model.down.cpu_linear = lambda x, weight, bias: nn.functional.linear(x, packed, bias)
    with pytest.raises(UnplannableError, match="packed for the CPU"):
        plain.check(model)
