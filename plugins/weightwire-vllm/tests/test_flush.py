"""Bringing a server with a half-done update back, and reading replies that are out of step."""

from __future__ import annotations

import json

import pytest
from weightwire.deadlines import Deadline
from weightwire.errors import EngineRefused


def _paths(vllm):
    return [call.path for call in vllm.posts()]


def _fail_an_update(plane, vllm, plan, deadline, errors=("torn",)):
    plane.begin(plan, deadline)
    vllm.fails["/update_weights"] = list(errors)
    with pytest.raises(EngineRefused):
        plane.update(plan, plan.windows[0], deadline).result(deadline)
    vllm.calls.clear()


@pytest.mark.parametrize("version", ["0.21.0", "0.22.1"])
def test_up_to_0_22_finish_is_the_flush(control, vllm, plan, soon, version):
    plane = control(version)
    _fail_an_update(plane, vllm, plan, soon)
    plane.flush(soon)
    assert _paths(vllm) == ["/finish_weight_update"]
    plane.begin(plan, soon)


@pytest.mark.parametrize("version", ["0.23.0", "0.27.1", "0.33.0"])
def test_from_0_23_on_start_and_finish_are(control, vllm, plan, soon, version):
    plane = control(version)
    _fail_an_update(plane, vllm, plan, soon)
    plane.flush(soon)
    assert _paths(vllm) == ["/start_weight_update", "/finish_weight_update"]
    plane.begin(plan, soon)


@pytest.mark.parametrize("version", ["0.21.0", "0.22.1", "0.23.0", "0.26.0", "0.33.0"])
def test_an_update_that_a_dead_client_left_open_is_closed(control, vllm, plan, soon, version):
    vllm.open = True
    plane = control(version)
    plane.flush(soon)
    assert not vllm.open
    plane.begin(plan, soon)


@pytest.mark.parametrize("version", ["0.21.0", "0.23.0", "0.33.0"])
def test_flushing_a_server_with_nothing_to_flush_is_fine(control, vllm, plan, soon, version):
    plane = control(version)
    plane.flush(soon)
    plane.flush(soon)
    plane.begin(plan, soon)


@pytest.mark.parametrize("version", ["0.21.0", "0.22.1", "0.23.0", "0.26.0", "0.33.0"])
def test_beginning_closes_what_a_dead_client_left_open_and_begins_once_more(control, vllm, plan, soon, version):
    vllm.open = True
    plane = control(version)
    plane.begin(plan, soon)
    assert vllm.open
    plane.update(plan, plan.windows[0], soon).result(soon)
    plane.finish(plan, soon)
    assert not vllm.open
    assert _paths(vllm).count("/update_weights") == 1


def test_beginning_is_not_tried_again_for_any_other_reason(control, vllm, plan, soon):
    vllm.fails["/start_weight_update"] = ["out of memory"]
    with pytest.raises(EngineRefused) as caught:
        control("0.32.0").begin(plan, soon)
    assert "out of memory" in caught.value.server_text
    assert _paths(vllm) == ["/start_weight_update"]


@pytest.mark.parametrize("version", ["0.22.1", "0.32.0"])
def test_with_two_workers_beginning_closes_it_too(two_workers, vllm, plan, soon, version):
    vllm.open = True
    plane = two_workers(version)
    plane.begin(plan, soon)
    plane.update(plan, plan.windows[0], soon).result(soon)
    plane.finish(plan, soon)
    assert not vllm.open


def test_a_flush_never_sets_the_version(control, vllm, plan, soon):
    vllm.weight_version = "weightwire:r0:torn"
    plane = control("0.33.0")
    _fail_an_update(plane, vllm, plan, soon)
    plane.flush(soon)
    assert vllm.weight_version == "weightwire:r0:torn"
    assert all(call.body == b"" for call in vllm.posts())


@pytest.mark.parametrize("version", ["0.22.1", "0.32.0"])
def test_a_server_that_cant_be_flushed_is_lost(control, vllm, plan, soon, version):
    plane = control(version)
    _fail_an_update(plane, vllm, plan, soon)
    vllm.fails["/finish_weight_update"] = ["start (0) + length (64) exceeds dimension size (32)."]
    with pytest.raises(EngineRefused, match="engine is lost") as caught:
        plane.flush(soon)
    assert "exceeds dimension size" in caught.value.server_text
    assert "restart" in caught.value.hint


@pytest.fixture
def two_workers(control, vllm, soon):
    """A plane that has probed a server of two workers."""
    vllm.workers = type(vllm.workers)(2)
    vllm.config["parallel_config"] = {"world_size": 2}

    def make(version):
        plane = control(version)
        plane.probe(soon)
        return plane

    return make


@pytest.mark.parametrize("errors", [("torn", "torn"), ("torn", ""), ("", "torn")])
def test_with_two_workers_old_errors_are_read_out_before_a_flush(two_workers, vllm, plan, soon, errors):
    plane = two_workers("0.32.0")
    _fail_an_update(plane, vllm, plan, soon, errors)
    plane.flush(soon)
    assert not vllm.open
    plane.begin(plan, soon)
    plane.update(plan, plan.windows[0], soon).result(soon)
    plane.finish(plan, soon)


@pytest.mark.parametrize("version", ["0.22.1", "0.26.0", "0.33.0"])
def test_with_two_workers_an_open_update_is_closed_however_often_others_were_refused(
    two_workers, http, vllm, plan, version
):
    soon = Deadline.after(10)
    plane = two_workers(version)
    plane.begin(plan, soon)
    for _ in range(3):
        assert http.post("/start_weight_update", soon, b"{}").status == 500
    plane.flush(soon)
    assert not vllm.open
    plane.begin(plan, soon)
    plane.finish(plan, soon)


def test_with_two_workers_what_earlier_clients_left_unread_is_read_out(two_workers, vllm, plan, soon):
    plane = two_workers("0.32.0")
    vllm.open = True
    vllm.workers.replies[1].extend(["old error", "", "older error"])
    plane.flush(soon)
    assert not vllm.open
    plane.begin(plan, soon)
    plane.finish(plan, soon)


def test_workers_that_fail_for_ever_are_not_asked_for_ever(two_workers, vllm, plan, soon):
    plane = two_workers("0.32.0")
    vllm.instead["/collective_rpc"] = (500, {"error": {"message": "a worker is gone"}})
    with pytest.raises(EngineRefused, match="engine is lost"):
        plane.flush(soon)
    assert len(vllm.posts()) < 20


def test_below_0_23_too(two_workers, vllm, plan, soon):
    plane = two_workers("0.22.1")
    _fail_an_update(plane, vllm, plan, soon, ("torn", "torn"))
    plane.flush(soon)
    assert not vllm.open
    plane.begin(plan, soon)


def test_with_two_workers_a_failure_that_shows_late_still_fails_the_commit(two_workers, vllm, plan, soon):
    plane = two_workers("0.32.0")
    _fail_an_update(plane, vllm, plan, soon, ("torn", "torn"))
    plane.flush(soon)
    plane.begin(plan, soon)
    vllm.fails["/finish_weight_update"] = ["", "no space left"]
    with pytest.raises(EngineRefused, match="no space left"):
        plane.finish(plan, soon)


def test_with_one_worker_nothing_is_read_out(control, vllm, plan, soon):
    plane = control("0.32.0")
    _fail_an_update(plane, vllm, plan, soon)
    plane.flush(soon)
    plane.begin(plan, soon)
    plane.finish(plan, soon)
    assert "/collective_rpc" not in _paths(vllm)


def test_what_is_sent_to_read_replies_out_does_nothing(two_workers, vllm, plan, soon):
    plane = two_workers("0.32.0")
    _fail_an_update(plane, vllm, plan, soon, ("torn", "torn"))
    plane.flush(soon)
    sent = [json.loads(call.body) for call in vllm.posts() if call.path == "/collective_rpc"]
    assert sent
    assert all(body == {"method": "check_health"} for body in sent)
