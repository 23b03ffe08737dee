"""Rounds that go well, and receivers' limits, over real sockets."""

from __future__ import annotations

import msgspec
import pytest
import requests
import torch
from weightwire.deadlines import Deadline
from weightwire_testing.model import TinyLlama, fingerprint
from weightwire_testing.reference import Backend, EngineSettings
from weightwire_testing.reference.release import Release
from weightwire_testing.reference.stock_payloads import parse_init, parse_update

NEW = TinyLlama(seed=2).checkpoint_tensors()
OLD = TinyLlama(seed=1).checkpoint_tensors()
QKV = [f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv"]
NORM = {"model.norm.weight": NEW["model.norm.weight"]}
BUFFER = 300_000
CUT, WHOLE = 33_000, 800_000  # sizes of packs that cut modules, and that cut none
PACKED = {"packed": True, "packed_buffer_size_bytes": BUFFER, "packed_num_buffers": 1}


def stock(version: str, **more: object) -> EngineSettings:
    return EngineSettings(version=version, backend=Backend.NCCL, **more)


def packs(tensors: dict[str, torch.Tensor], limit: int = BUFFER) -> list[torch.Tensor]:
    """vLLM's pack rule, by hand."""
    done: list[torch.Tensor] = []
    pack: list[torch.Tensor] = []
    for tensor in tensors.values():
        pack.append(tensor.contiguous().view(-1).view(torch.uint8))
        if sum(map(torch.numel, pack)) > limit:
            done.append(torch.cat(pack))
            pack = []
    return [*done, torch.cat(pack)] if pack else done


@pytest.mark.parametrize("version", ["0.17.1", "0.20.2", "0.21.0", "0.22.1", "0.23.0", "0.25.1", "0.28.0", "0.33.0"])
def test_a_stock_round_brings_the_new_weights_in_every_dialect(version, trainer) -> None:
    there = trainer(stock(version))
    assert there.engine.fingerprint() == fingerprint(OLD)
    before = there.says()
    assert there.init().status_code == 200
    assert set(there.push(NEW)) == {200}
    assert there.engine.fingerprint() == fingerprint(NEW)
    assert there.says() != before


@pytest.mark.parametrize("version", ["0.20.2", "0.24.0", "0.27.1", "0.28.0", "0.32.0"])
def test_a_packed_stock_round_too(version, trainer) -> None:
    there = trainer(stock(version))
    in_init = int(version.split(".")[1]) >= 28
    assert there.init(**(PACKED if in_init else {})).status_code == 200
    assert set(there.push(NEW, flats=packs(NEW), **({} if in_init else PACKED))) == {200}
    assert there.engine.fingerprint() == fingerprint(NEW)


@pytest.mark.parametrize(
    ("version", "buffers", "limit", "right"),
    [
        ("0.32.0", 2, 33_000, False),
        ("0.32.0", 1, 33_000, True),
        ("0.33.0", 2, 33_000, True),
        ("0.32.0", 2, WHOLE, True),
    ],
)
def test_two_buffers_race_up_to_0_32_where_a_module_lies_in_two_packs(trainer, version, buffers, limit, right) -> None:
    there = trainer(stock(version))
    packing = {"packed": True, "packed_buffer_size_bytes": limit, "packed_num_buffers": buffers}
    assert there.init(**packing).status_code == 200
    assert set(there.push(NEW, flats=packs(NEW, limit))) == {200}
    assert (there.engine.fingerprint() == fingerprint(NEW)) is right


def test_a_unique_id_in_the_call_needs_no_key_in_the_store(trainer) -> None:
    there = trainer(stock("0.30.0"))
    assert there.init(unique_id=True).status_code == 200
    assert there.push(NEW) == [200, 200, 200]
    assert there.engine.fingerprint() == fingerprint(NEW)


def test_several_updates_make_one_round(trainer) -> None:
    there = trainer(stock("0.32.0"))
    there.init()
    there.start()
    names = list(NEW)
    for part in (names[:7], names[7:]):
        assert there.update({name: NEW[name] for name in part}).status_code == 200
    assert there.finish("7").status_code == 200
    assert there.engine.fingerprint() == fingerprint(NEW)
    assert there.get("/weight_info").json() == {"weight_version": "7"}


def test_a_channel_can_be_opened_again(trainer) -> None:
    there = trainer(stock("0.32.0"))
    for tensors in (NEW, OLD):
        assert there.init().status_code == 200
        assert there.push(tensors) == [200, 200, 200]
        assert there.engine.fingerprint() == fingerprint(tensors)


def test_tensors_of_another_dtype_are_cast(trainer) -> None:
    there = trainer(stock("0.32.0"))
    there.init()
    halves = {name: tensor.bfloat16() for name, tensor in NEW.items()}
    assert there.push(halves) == [200, 200, 200]
    assert there.engine.fingerprint() == fingerprint({name: half.float() for name, half in halves.items()})


def test_half_of_a_fused_layer_is_200_and_garbage(trainer) -> None:
    there = trainer(stock("0.32.0"))
    there.init()
    assert there.push({QKV[1]: NEW[QKV[1]]}) == [200, 200, 200]
    [held] = there.engine.holdings()
    assert held.garbage == ("model.layers.0.self_attn.qkv_proj",)


def test_nothing_sent_is_200_and_the_old_weights(trainer) -> None:
    there = trainer(stock("0.32.0"))
    there.init()
    assert there.push({}) == [200, 200, 200]
    assert there.engine.fingerprint() == fingerprint(OLD)


def test_empty_lists_repeat_the_last_names_from_0_33(trainer) -> None:
    there = trainer(stock("0.33.0"))
    there.init()
    assert there.push(NEW) == [200, 200, 200]
    there.start()
    flats = [tensor.view(-1).view(torch.uint8) for tensor in OLD.values()]
    assert there.update({}, flats).status_code == 200
    assert there.finish().status_code == 200
    assert there.engine.fingerprint() == fingerprint(OLD)


def test_the_kernel_format_copies_without_a_reload(trainer) -> None:
    there = trainer(stock("0.22.1"))
    there.init()
    there.post("/start_weight_update", {"is_checkpoint_format": False})
    assert there.update({QKV[1]: NEW[QKV[1]]}).status_code == 200
    assert there.says()
    assert there.finish().status_code == 200
    assert there.engine.holdings()[0].garbage == ()


@pytest.mark.parametrize(("workers", "data_parallel"), [(2, 1), (1, 2)])
def test_every_worker_of_a_larger_world_takes_part(workers, data_parallel, trainer) -> None:
    there = trainer(stock("0.32.0", workers=workers, data_parallel=data_parallel))
    there.init(rank_offset=1)
    assert there.push(NEW) == [200, 200, 200]
    assert [held.fingerprint for held in there.engine.holdings()] == [fingerprint(NEW)] * 2


def test_a_list_of_payloads_gives_each_worker_its_own_and_each_rank_can_be_asked(trainer) -> None:
    there = trainer(stock("0.29.0", data_parallel=2))
    there.init()
    there.start()
    names = ("model.norm.weight", "model.layers.0.input_layernorm.weight")
    each = [{"names": [name], "dtype_names": ["float32"], "shapes": [[128]]} for name in names]
    call = there.later("/update_weights", {"update_info": each})
    there.sender.send([torch.linspace(-2, 2, 128).view(torch.uint8)])
    assert call.result(Deadline.after(60)).status_code == 200
    there.finish()
    first, second = there.engine.holdings()
    assert first.fingerprint != second.fingerprint
    assert there.engine.fingerprint() == ""
    said = [there.complete(rank=rank, return_token_ids=True)["token_ids"] for rank in (0, 1)]
    assert said[0] != said[1]


def test_a_data_parallel_rank_that_there_is_not_is_400(trainer) -> None:
    there = trainer(EngineSettings())
    url = there.engine.url + "/v1/completions"
    reply = requests.post(url, json={"prompt": [1]}, headers={"X-data-parallel-rank": "1"}, timeout=9)
    assert reply.status_code == 400


# What the receivers can't take.


@pytest.mark.parametrize(("version", "status"), [("0.31.0", 500), ("0.32.0", 200)])
def test_a_tensor_without_dimensions_in_a_pack_fails_up_to_0_31(version, status, trainer) -> None:
    there = trainer(stock(version))
    there.init(**PACKED)
    there.start()
    scalar = {"model.layers.0.nope.weight": torch.tensor(1.0)}
    reply = there.update(scalar, packs(scalar))
    assert reply.status_code == 500
    assert ("named 'layers.0.nope'" in reply.text) is (status == 200)


def test_a_tensor_at_an_odd_place_in_a_pack_fails(trainer) -> None:
    there = trainer(stock("0.32.0"))
    there.init(**PACKED)
    there.start()
    odd = {"model.norm.weight": torch.ones(128).bfloat16()[:1], "lm_head.weight": torch.ones(3)}
    reply = there.update(odd, packs(odd))
    assert reply.status_code == 500
    assert "must be divisible" in reply.text


def test_a_dtype_that_nccl_lacks_fails_unpacked_alone(trainer) -> None:
    there = trainer(stock("0.32.0"))
    there.init()
    there.start()
    reply = there.update({"model.norm.weight": torch.ones(128, dtype=torch.int16)}, [])
    assert "Unsupported dtype: torch.int16" in reply.text
    there.init(**PACKED)
    there.start()
    flags = {"model.norm.weight": torch.ones(128, dtype=torch.int16)}
    assert there.update(flags, packs(flags)).status_code == 200


def test_a_dtype_that_torch_lacks_fails_in_torchs_words(trainer) -> None:
    there = trainer(stock("0.32.0"))
    there.init()
    there.start()
    info = {"names": ["a"], "dtype_names": ["float99"], "shapes": [[1]]}
    assert "has no attribute 'float99'" in there.post("/update_weights", {"update_info": info}).text


# Ours.


@pytest.mark.parametrize("version", ["0.20.2", "0.22.1", "0.25.1", "0.32.0"])
@pytest.mark.parametrize("packed", [True, False])
def test_a_direct_round_of_ours(version, packed, trainer) -> None:
    there = trainer(EngineSettings(version=version))
    assert there.init_ours(NEW, packed=packed).status_code == 200
    if there.minor >= 21:
        assert there.start().status_code == 200
    call = there.ours("receive", len(NEW))
    there.sender.send(packs(NEW, 100_000 if packed else -1))
    assert call.result(Deadline.after(60)).status_code == 200
    if there.minor >= 21:
        assert there.finish().status_code == 200
    assert there.engine.fingerprint() == fingerprint(NEW)


def stage(there, tensors: dict[str, torch.Tensor]) -> None:
    assert there.start().status_code == 200
    assert there.ours("stage", len(tensors)).result(Deadline.after(60)).status_code == 200
    assert there.finish().status_code == 200


@pytest.mark.parametrize("version", ["0.25.1", "0.32.0"])
def test_a_staged_round_lands_beside_the_model_while_it_serves(version, trainer) -> None:
    there = trainer(EngineSettings(version=version))
    before = there.says()
    there.init_ours(NEW)
    stage(there, NEW)
    flats = packs(NEW, 100_000)
    there.sender.send(flats[:3])
    assert there.says() == before
    there.sender.send(flats[3:])
    assert there.engine.fingerprint() == fingerprint(OLD)
    there.start()
    assert there.ours("commit").result(Deadline.after(60)).status_code == 200
    there.finish("3")
    assert there.engine.fingerprint() == fingerprint(NEW)
    assert there.says() != before


def test_staged_on_0_22_goes_by_the_kernel_format(trainer) -> None:
    there = trainer(EngineSettings(version="0.22.1"))
    there.init_ours(NEW)
    for action in ("stage", "commit"):
        assert there.post("/start_weight_update", {"is_checkpoint_format": False}).status_code == 200
        assert there.ours(action, len(NEW)).result(Deadline.after(60)).status_code == 200
        assert there.finish().status_code == 200
        if action == "stage":
            there.sender.send(packs(NEW, 100_000))
            assert there.says()
    assert there.engine.fingerprint() == fingerprint(NEW)


def test_an_aborted_staged_round_leaves_the_old_weights_and_a_channel_that_works(trainer) -> None:
    there = trainer(EngineSettings())
    there.init_ours(NEW)
    stage(there, NEW)
    there.sender.send(packs(NEW, 100_000))
    there.start()
    assert there.ours("abort").result(Deadline.after(60)).status_code == 200
    assert "was not staged" in there.ours("commit").result(Deadline.after(60)).text
    assert there.engine.fingerprint() == fingerprint(OLD)
    stage(there, NEW)
    there.sender.send(packs(NEW, 100_000))
    there.start()
    assert there.ours("commit").result(Deadline.after(60)).status_code == 200
    assert there.engine.fingerprint() == fingerprint(NEW)


def test_a_staged_round_whose_sender_dies_can_not_be_committed(trainer) -> None:
    there = trainer(EngineSettings())
    there.init_ours(NEW)
    stage(there, NEW)
    there.sender.send(packs(NEW, 100_000)[:2])
    there.sender.leave()
    there.start()
    assert there.ours("commit").result(Deadline.after(60)).status_code == 500
    assert there.engine.fingerprint() == fingerprint(OLD)
    assert there.says()


def test_half_a_fused_layer_is_not_committed(trainer) -> None:
    there = trainer(EngineSettings())
    part = {QKV[0]: NEW[QKV[0]]}
    there.init_ours(part)
    stage(there, part)
    there.sender.send(packs(part, 100_000))
    there.start()
    assert "qkv_proj" in there.ours("commit").result(Deadline.after(60)).text
    assert there.engine.fingerprint() == fingerprint(OLD)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"wire_version": 99}, "wire version 99"),
        ({"transport": "pigeon"}, "the transport 'pigeon'"),
        ({"zzz": 1}, "unexpected keyword argument 'zzz'"),
        ({"port": "x"}, "Expected `int`"),
    ],
)
def test_ours_refuses_an_init_it_does_not_understand(changed, says, trainer) -> None:
    reply = trainer(EngineSettings()).init_ours(NEW, **changed)
    assert reply.status_code == 500
    assert says in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"digest": "other"}, "the channel was opened for"),
        ({"action": "guess"}, "can't 'guess' here"),
        ({"action": "commit"}, "was not staged here"),
        ({"extra": 1}, "unexpected keyword argument 'extra'"),
    ],
)
def test_ours_refuses_an_update_it_does_not_understand(changed, says, trainer) -> None:
    there = trainer(EngineSettings())
    there.init_ours(NEW)
    there.start()
    reply = there.ours("receive", **changed).result(Deadline.after(60))
    assert reply.status_code == 500
    assert says in reply.json()["error"]["message"]


def test_ours_looks_before_it_receives(trainer) -> None:
    there = trainer(EngineSettings())
    for wrong, says in (
        ({"model.nope.weight": torch.ones(3)}, "no tensor 'model.nope.weight'"),
        ({"model.norm.weight": torch.ones(3)}, "has shape [128] here, not [3]"),
    ):
        there.init_ours(wrong)
        there.start()
        reply = there.ours("receive", 1).result(Deadline.after(60))
        assert says in reply.json()["error"]["message"]
        assert there.says()


def test_ours_needs_a_channel(trainer) -> None:
    there = trainer(EngineSettings())
    there.start()
    assert "has no channel" in there.ours("receive").result(Deadline.after(60)).text
    there.init_ours(NEW)
    assert there.post("/shutdown_weight_transfer_engine").status_code == 200
    there.start()
    assert "has no channel" in there.ours("receive").result(Deadline.after(60)).text


# Payloads by themselves.


def test_numbers_may_come_as_text_as_a_dataclass_would_take_them() -> None:
    info = {"master_address": "h", "master_port": "29500", "rank_offset": 1, "world_size": 2}
    assert parse_init(msgspec.Raw(msgspec.json.encode(info)), Release.of("0.22.1")).master_port == 29500


def test_a_list_in_place_of_an_object_is_refused() -> None:
    with pytest.raises(ValueError, match="must be a mapping"):
        parse_update(msgspec.Raw(b"[]"), Release.of("0.32.0"))


def test_sparse_updates_are_not_offered() -> None:
    info = {"names": [], "dtype_names": [], "shapes": [], "update_kind": "sparse_flat", "num_updates_list": [1]}
    with pytest.raises(ValueError, match="dense updates only"):
        parse_update(msgspec.Raw(msgspec.json.encode(info)), Release.of("0.23.0"))
