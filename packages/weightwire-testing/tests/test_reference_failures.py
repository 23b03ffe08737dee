"""Rounds that go wrong: what vLLM's table of failures says, seen on the reference engine."""

from __future__ import annotations

import pytest
import requests
import torch
from weightwire.deadlines import Deadline
from weightwire.errors import DeadlineExceeded
from weightwire_testing.model import TinyLlama, fingerprint
from weightwire_testing.reference import Backend, EngineSettings

NEW = TinyLlama(seed=2).checkpoint_tensors()
OLD = TinyLlama(seed=1).checkpoint_tensors()
NAMES = list(NEW)
INSIDE_A_FUSED_LAYER = NAMES.index("model.layers.1.self_attn.q_proj.weight") + 1
BETWEEN_MODULES = NAMES.index("model.layers.0.self_attn.v_proj.weight") + 1
DEAD = "EngineCore encountered an issue"


def stock(version: str, **more: object) -> EngineSettings:
    return EngineSettings(version=version, backend=Backend.NCCL, **more)


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


def rows() -> dict[str, object]:
    return {"names": NAMES, "dtype_names": ["float32"] * len(NAMES), "shapes": [list(t.shape) for t in NEW.values()]}


def cut(there, after: int) -> requests.Response:
    """A round whose sender leaves after some tensors; the reply to its update."""
    assert there.init().status_code == 200
    if there.minor >= 21:
        assert there.start().status_code == 200
    call = there.later("/update_weights", {"update_info": rows()})
    there.sender.send([raw(NEW[name]) for name in NAMES[:after]])
    there.sender.leave()
    return call.result(Deadline.after(60))


def flush(there) -> None:
    """The recipe of each release, as a client would have to know it."""
    if there.minor < 21:
        assert there.update({}).status_code == 200
    elif there.minor < 23:
        assert there.finish().status_code == 200
    else:
        assert there.start().status_code == 200
        assert there.finish().status_code == 200


def test_a_forward_pass_on_an_open_update_kills_the_engine_and_then_the_process(trainer) -> None:
    there = trainer(stock("0.32.0", death_delay=1.0))
    assert there.start().status_code == 200
    reply = there.post("/v1/completions", {"prompt": [1]})
    assert reply.status_code == 500
    assert DEAD in reply.json()["error"]["message"]
    assert there.get("/health").status_code == 503
    assert DEAD in there.post("/pause").json()["error"]["message"]
    assert there.engine.wait_dead() == 1
    assert "meta device" in there.engine.log()


def test_a_stream_ends_with_an_error_when_the_engine_dies(trainer) -> None:
    there = trainer(stock("0.32.0"))
    asked = {"prompt": [1], "max_tokens": 500, "stream": True}
    with requests.post(there.engine.url + "/v1/completions", json=asked, stream=True, timeout=9) as reply:
        lines = reply.iter_lines()
        next(lines)
        there.start()
        assert DEAD.encode() in b"".join(lines)
    there.engine.wait_dead()


@pytest.mark.parametrize(("version", "finish"), [("0.22.1", 200), ("0.23.0", 500), ("0.32.0", 500)])
def test_a_lost_sender_leaves_the_update_open_up_to_0_22_alone(version, finish, trainer) -> None:
    there = trainer(stock(version))
    reply = cut(there, BETWEEN_MODULES)
    assert reply.status_code == 500
    assert there.engine.holdings()[0].open
    assert there.finish().status_code == finish
    assert there.start().status_code == 200


def test_start_after_a_failed_update_is_refused_up_to_0_22(trainer) -> None:
    there = trainer(stock("0.22.1"))
    cut(there, BETWEEN_MODULES)
    assert "already active" in there.start().text


@pytest.mark.parametrize("version", ["0.20.2", "0.22.1", "0.25.1", "0.32.0"])
@pytest.mark.parametrize("after", [BETWEEN_MODULES, INSIDE_A_FUSED_LAYER])
def test_after_the_flush_of_its_release_a_full_push_makes_it_whole(version, after, trainer) -> None:
    there = trainer(stock(version))
    cut(there, after)
    flush(there)
    held = there.engine.holdings()[0]
    assert not held.open
    assert bool(held.garbage) is (after == INSIDE_A_FUSED_LAYER)
    assert held.fingerprint not in {fingerprint(OLD), fingerprint(NEW)}
    assert there.says()
    there.init()
    assert set(there.push(NEW)) == {200}
    assert there.engine.fingerprint() == fingerprint(NEW)


@pytest.mark.parametrize(
    ("version", "says"), [("0.20.2", "into parameter (torch.Size([0]))"), ("0.32.0", "weight_loader")]
)
def test_a_retry_without_a_flush_fails_after_a_cut_inside_a_fused_layer(version, says, trainer) -> None:
    there = trainer(stock(version))
    cut(there, INSIDE_A_FUSED_LAYER)
    there.init()
    if there.minor >= 21:
        assert there.start().status_code == 200
    reply = there.update(NEW)
    assert reply.status_code == 500
    assert says in reply.text


def test_a_retry_without_a_flush_works_after_a_cut_between_modules(trainer) -> None:
    there = trainer(stock("0.32.0"))
    cut(there, BETWEEN_MODULES)
    there.init()
    assert there.push(NEW) == [200, 200, 200]
    assert there.engine.fingerprint() == fingerprint(NEW)


def test_a_wrong_shape_after_a_right_shard_is_beyond_repair(trainer) -> None:
    there = trainer(stock("0.32.0"))
    there.init()
    there.start()
    q, k = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"
    assert there.update({q: NEW[q], k: NEW[q]}).status_code == 500
    for _ in range(2):
        there.start()
        assert there.finish().status_code == 500


def test_a_failed_update_leaves_the_weight_version_alone(trainer) -> None:
    there = trainer(stock("0.32.0"))
    cut(there, BETWEEN_MODULES)
    assert there.finish("new").status_code == 500
    assert there.get("/weight_info").json() == {"weight_version": "default"}


def test_parse_errors_tear_the_model_from_0_21(trainer) -> None:
    there = trainer(stock("0.32.0"))
    there.start()
    assert there.post("/update_weights", {"update_info": {"zzz": 1}}).status_code == 500
    assert there.engine.holdings()[0].open
    there.engine.reset(stock("0.20.2", checkpoint=there.engine.settings.checkpoint))
    assert there.post("/update_weights", {"update_info": {"zzz": 1}}).status_code == 500
    assert not there.engine.holdings()[0].open


def test_a_silent_sender_holds_the_engine_but_not_the_web_server(trainer) -> None:
    there = trainer(stock("0.32.0", timeout=20.0))
    there.init()
    there.start()
    call = there.later("/update_weights", {"update_info": rows()})
    there.sender.send([raw(NEW[NAMES[0]])])
    assert there.get("/health").status_code == there.get("/version").status_code == 200
    for path in ("/is_paused", "/weight_info"):
        with pytest.raises(requests.Timeout):
            there.get(path, seconds=0.3)
    waiting = there.later("/resume")
    with pytest.raises(DeadlineExceeded):
        waiting.result(Deadline.after(0.3))
    there.sender.send([raw(NEW[name]) for name in NAMES[1:]])
    assert call.result(Deadline.after(60)).status_code == 200
    assert waiting.result(Deadline.after(60)).json() == {"status": "resumed"}


def test_a_silent_sender_is_given_up_at_the_time_out(trainer) -> None:
    there = trainer(stock("0.32.0", timeout=0.5))
    there.init()
    there.start()
    reply = there.post("/update_weights", {"update_info": rows()})
    assert reply.status_code == 500
    assert "The deadline of 0.5 s passed" in reply.text


def test_as_nccl_a_lost_sender_holds_the_engine_for_ever(trainer) -> None:
    there = trainer(stock("0.32.0", hang_on_lost_peer=True))
    there.init()
    there.start()
    call = there.later("/update_weights", {"update_info": rows()})
    there.sender.send([raw(NEW[NAMES[0]])])
    there.sender.leave()
    with pytest.raises(DeadlineExceeded):
        call.result(Deadline.after(1))
    assert there.get("/health").status_code == 200
    there.engine.reset()
    assert there.says()


def test_after_one_workers_failure_the_replies_are_out_of_step_until_they_are_drained(trainer) -> None:
    there = trainer(stock("0.32.0", workers=2))
    assert there.finish().status_code == 500
    stale = there.start()
    assert "without a matching start" in stale.text
    assert [held.open for held in there.engine.holdings()] == [True, True]
    assert there.post("/collective_rpc", {"method": "check_health"}).status_code == 200
    assert there.finish().status_code == 200
    assert not any(held.open for held in there.engine.holdings())


def test_data_parallel_ranks_are_not_out_of_step(trainer) -> None:
    there = trainer(stock("0.32.0", data_parallel=2))
    assert there.finish().status_code == 500
    assert there.start().status_code == 200


def test_a_sender_that_is_no_sender_is_told_from_its_id(trainer) -> None:
    there = trainer(stock("0.32.0"))
    there.init()
    reply = there.post(
        "/init_weight_transfer_engine",
        {"init_info": {"nccl_unique_id_b64": "AAAA", "rank_offset": 1, "world_size": 2}},
    )
    assert "128 bytes, not 3" in reply.text


def test_a_dead_engine_that_is_started_again_is_found_at_its_old_address(trainer) -> None:
    there = trainer(stock("0.32.0"))
    there.engine.set_faults("pause:die")
    with pytest.raises(requests.ConnectionError):
        there.post("/pause")
    there.engine.wait_dead()
    url = there.engine.url
    there.engine.start()
    assert there.engine.url == url
    assert there.says()
