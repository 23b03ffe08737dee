"""Every kind of fault, over real sockets."""

from __future__ import annotations

import time

import pytest
import requests
import torch
from weightwire.deadlines import Deadline
from weightwire.errors import ConfigurationError, DeadlineExceeded
from weightwire_testing.faults import Fault, Kind, Phase
from weightwire_testing.model import TinyLlama
from weightwire_testing.reference import Backend, EngineSettings

NEW = TinyLlama(seed=2).checkpoint_tensors()
STOCK = EngineSettings(backend=Backend.NCCL)
PHASES = {
    "connect": ("GET", "/version"),
    "health": ("GET", "/health"),
    "server_info": ("GET", "/server_info"),
    "world_size": ("GET", "/get_world_size"),
    "init": ("POST", "/init_weight_transfer_engine"),
    "mark": ("POST", "/update_weight_version"),
    "pause": ("POST", "/pause"),
    "start": ("POST", "/start_weight_update"),
    "update": ("POST", "/update_weights"),
    "finish": ("POST", "/finish_weight_update"),
    "resume": ("POST", "/resume"),
    "is_paused": ("GET", "/is_paused"),
    "weight_info": ("GET", "/weight_info"),
    "shutdown": ("POST", "/shutdown_weight_transfer_engine"),
    "completions": ("POST", "/v1/completions"),
}


def test_every_phase_is_struck_at_its_route(trainer) -> None:
    there = trainer()
    assert set(PHASES) | {"receive"} == set(Phase)
    there.engine.set_faults(*(f"{phase}:refuse=418,here" for phase in PHASES))
    for method, path in PHASES.values():
        reply = requests.request(method, there.engine.url + path, timeout=9)
        assert (path, reply.status_code, reply.json()["error"]["message"]) == (path, 418, "here")
    assert there.get("/health").status_code == 200


def test_a_refusal_before_acts_not_and_one_after_has_acted(trainer) -> None:
    there = trainer()
    there.engine.set_faults("pause:refuse", "resume:refuse:after=500,late")
    assert there.post("/pause", mode="keep").status_code == 500
    assert there.get("/is_paused").json() == {"is_paused": False}
    assert there.post("/pause", mode="keep").status_code == 200
    assert there.post("/resume").json()["error"]["message"] == "late"
    assert there.get("/is_paused").json() == {"is_paused": False}


def test_the_second_call_can_be_the_one(trainer) -> None:
    there = trainer()
    there.engine.set_faults("pause:refuse@2")
    assert [there.post("/pause", mode="keep").status_code for _ in range(3)] == [200, 500, 200]


def test_faults_are_replaced_and_taken_away_at_run_time(trainer) -> None:
    there = trainer()
    there.engine.set_faults("pause:refuse@*")
    assert there.get("/_faults").json()[0]["kind"] == "refuse"
    there.engine.set_faults(Fault(phase=Phase.RESUME, kind=Kind.REFUSE))
    assert (there.post("/pause").status_code, there.post("/resume").status_code) == (200, 500)
    there.engine.set_faults()
    assert there.post("/resume").status_code == 200
    there.engine.set_faults("pause:refuse@*")
    there.engine.reset()
    assert there.post("/pause").status_code == 200


def test_a_wrong_fault_is_refused_and_the_old_ones_stay(trainer) -> None:
    there = trainer()
    there.engine.set_faults("pause:refuse@*")
    with pytest.raises(ConfigurationError, match="is not a fault"):
        there.engine.set_faults("nonsense")
    assert there.post("/pause").status_code == 500


def test_a_stall_holds_the_reply_and_nothing_else(trainer) -> None:
    there = trainer()
    there.engine.set_faults("is_paused:stall=0.6")
    began = time.monotonic()
    held = there.later("/pause")
    with pytest.raises(requests.Timeout):
        there.get("/is_paused", seconds=0.2)
    assert held.result(Deadline.after(9)).status_code == 200
    assert time.monotonic() - began < 5


def test_garbage_is_200_and_no_json(trainer) -> None:
    there = trainer()
    there.engine.set_faults("pause:garbage")
    reply = there.post("/pause", mode="keep")
    assert reply.status_code == 200
    with pytest.raises(requests.JSONDecodeError):
        reply.json()
    assert there.get("/is_paused").json() == {"is_paused": True}


def test_half_a_reply_ends_the_connection(trainer) -> None:
    there = trainer()
    there.engine.set_faults("pause:truncate")
    with pytest.raises(requests.RequestException):
        there.post("/pause")


@pytest.mark.parametrize(("when", "acted"), [("before", False), ("after", True)])
def test_a_cut_sends_nothing(when, acted, trainer) -> None:
    there = trainer()
    there.engine.set_faults(f"pause:cut:{when}")
    with pytest.raises(requests.ConnectionError):
        there.post("/pause", mode="keep")
    assert there.engine.calls()[-1].status == 0
    assert there.get("/is_paused").json() == {"is_paused": acted}


def test_a_trickle_is_a_whole_reply_in_the_end(trainer) -> None:
    there = trainer()
    there.engine.set_faults("is_paused:trickle=0.002")
    began = time.monotonic()
    assert there.get("/is_paused").json() == {"is_paused": False}
    assert time.monotonic() - began > 0.1


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_process_dies_when_it_is_told_to(when, trainer) -> None:
    there = trainer()
    there.engine.set_faults(f"start:die:{when}")
    with pytest.raises(requests.ConnectionError):
        there.start()
    assert there.engine.wait_dead() == 9
    assert not there.engine.alive


# In the collectives.


def pushing(there, *faults: str):
    there.init()
    there.start()
    there.engine.set_faults(*faults)
    return there.update(NEW)


def test_a_tensor_that_can_not_be_loaded_fails_the_update_in_mid_stream(trainer) -> None:
    there = trainer(STOCK)
    reply = pushing(there, "receive:refuse:after=out of memory@8")
    assert reply.status_code == 500
    assert "Worker failed with error 'out of memory'" in reply.text
    assert there.engine.holdings()[0].open


def test_a_worker_that_sits_still_holds_the_engine(trainer) -> None:
    there = trainer(STOCK)
    there.init()
    there.start()
    there.engine.set_faults("receive:stall=1.5")
    norm = NEW["model.norm.weight"]
    info = {"names": ["model.norm.weight"], "dtype_names": ["float32"], "shapes": [[128]]}
    held = there.later("/update_weights", {"update_info": info})
    with pytest.raises(DeadlineExceeded):
        held.result(Deadline.after(0.3))
    with pytest.raises(requests.Timeout):
        there.get("/is_paused", seconds=0.2)
    there.sender.send([norm.view(torch.uint8)])
    assert held.result(Deadline.after(9)).status_code == 200


def test_a_process_that_dies_in_mid_stream_is_gone(trainer) -> None:
    there = trainer(STOCK)
    with pytest.raises(requests.ConnectionError):
        pushing(there, "receive:die@3")
    assert there.engine.wait_dead() == 9


def test_ours_suffers_in_its_collectives_too(trainer) -> None:
    there = trainer(EngineSettings())
    there.init_ours(NEW, packed=False)
    there.start()
    there.engine.set_faults("receive:refuse=boom@3")
    call = there.ours("receive", len(NEW))
    there.sender.send([tensor.view(-1).view(torch.uint8) for tensor in list(NEW.values())[:4]])
    assert "boom" in call.result(Deadline.after(9)).text
