from __future__ import annotations

import json

import pytest
from weightwire.deadlines import Deadline
from weightwire.errors import (
    CompatibilityError,
    DeadlineExceeded,
    EngineRefused,
    GarbledReply,
    ManifestError,
    StateError,
)
from weightwire.messages import CachePolicy, PauseMode, Window
from weightwire.options import Options
from weightwire.planes import ControlPlane
from weightwire_vllm.control import create

VERSIONS = ["0.21.0", "0.24.0", "0.25.1", "0.26.0", "0.27.1", "0.28.0", "0.33.0"]


@pytest.fixture
def do_round(plan, request_to_join, soon):
    """Runs one whole round over a control plane."""

    def run(plane):
        plane.init_channel(request_to_join, soon).result(soon)
        plane.mark("weightwire:updating:r1", soon)
        plane.pause(PauseMode.KEEP, CachePolicy.RESET, soon)
        plane.begin(plan, soon)
        for window in plan.windows:
            plane.update(plan, window, soon).result(soon)
        plane.finish(plan, soon)
        plane.resume(soon)

    return run


def test_the_factory_makes_a_control_plane(http):
    assert isinstance(create(http, "0.32.0", Options()), ControlPlane)


def test_the_factory_refuses_the_two_call_releases(http):
    with pytest.raises(CompatibilityError):
        create(http, "0.20.2", Options())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_round_leaves_the_server_running_and_closed(control, vllm, do_round, version):
    do_round(control(version))
    assert (vllm.paused, vllm.open) == (False, False)
    assert vllm.weight_version == ("7" if version >= "0.27" else "default")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_round_makes_the_calls_of_the_protocol_in_order(control, vllm, do_round, version):
    do_round(control(version))
    marked = ["/update_weight_version"] if version >= "0.27" else []
    assert [call.path for call in vllm.posts()] == [
        "/init_weight_transfer_engine",
        *marked,
        "/pause",
        "/start_weight_update",
        "/update_weights",
        "/update_weights",
        "/finish_weight_update",
        "/resume",
    ]


def test_to_our_engine_the_payloads_are_ours(control, vllm, do_round, soon):
    vllm.config["weight_transfer_config"] = {"backend": "weightwire"}
    plane = control("0.22.1")
    plane.probe(soon)
    do_round(plane)
    bodies = {call.path: json.loads(call.body) for call in vllm.posts() if call.body}
    assert bodies["/init_weight_transfer_engine"]["init_info"]["transport"] == "gloo"
    assert bodies["/start_weight_update"] == {"is_checkpoint_format": True}
    assert bodies["/update_weights"]["update_info"]["action"] == "receive"


@pytest.mark.parametrize(("cache", "said"), [(CachePolicy.RESET, "true"), (CachePolicy.KEEP, "false")])
def test_pause_says_mode_and_cache(control, vllm, soon, cache, said):
    control("0.32.0").pause(PauseMode.WAIT, cache, soon)
    assert vllm.calls[-1].query == {"mode": "wait", "clear_cache": said}
    assert vllm.paused


def test_a_mark_is_kept_and_read_back_from_0_27_on(control, soon):
    plane = control("0.27.0")
    assert plane.mark("weightwire:updating:r1", soon)
    assert plane.weight_version(soon) == "weightwire:updating:r1"


def test_below_0_27_a_mark_is_declined_without_a_call(control, vllm, soon):
    plane = control("0.26.0")
    assert not plane.mark("x", soon)
    assert plane.weight_version(soon) is None
    assert vllm.calls == []


@pytest.mark.parametrize(("version", "calls"), [("0.31.0", 0), ("0.32.0", 1)])
def test_a_channel_is_closed_where_the_server_can(control, vllm, soon, version, calls):
    control(version).close_channel(soon)
    assert [call.path for call in vllm.calls] == ["/shutdown_weight_transfer_engine"] * calls


def test_is_paused_asks_the_engine(control, vllm, soon):
    plane = control("0.32.0")
    assert not plane.is_paused(soon)
    vllm.paused = True
    assert plane.is_paused(soon)


def test_a_direct_round_cant_be_taken_back(control, plan, soon):
    with pytest.raises(StateError, match="r1 can't be taken back"):
        control("0.32.0").abort_update(plan, soon)


def test_an_update_that_fails_carries_the_servers_words(control, vllm, plan, soon):
    plane = control("0.32.0")
    plane.begin(plan, soon)
    vllm.fails["/update_weights"] = ["There is no module or parameter named 'nope'"]
    with pytest.raises(EngineRefused) as caught:
        plane.update(plan, plan.windows[0], soon).result(soon)
    assert caught.value.status == 500
    assert "no module or parameter named 'nope'" in caught.value.server_text


def test_a_failed_join_says_where_the_workers_should_have_met_the_trainer(control, vllm, request_to_join, soon):
    vllm.fails["/init_weight_transfer_engine"] = ["The client socket has timed out after 300000ms"]
    with pytest.raises(EngineRefused, match="timed out") as caught:
        control("0.32.0").init_channel(request_to_join, soon).result(soon)
    assert "10.0.0.7:4711" in caught.value.hint
    assert "`advertise`" in caught.value.hint


def test_an_empty_window_is_refused_before_any_call(control, vllm, plan, soon):
    with pytest.raises(ManifestError):
        control("0.33.0").update(plan, Window(0, 3, 3), soon)
    assert vllm.calls == []


def test_an_update_in_flight_can_be_watched(control, vllm, plan, soon):
    plane = control("0.32.0")
    plane.begin(plan, soon)
    vllm.silent.add("/update_weights")
    call = plane.update(plan, plan.windows[0], soon)
    assert call.failure() is None
    assert not call.done
    vllm.released.set()
    call.result(soon)


def test_a_wait_meets_its_deadline_and_nothing_is_sent_twice(control, vllm, plan, soon):
    plane = control("0.32.0")
    plane.begin(plan, soon)
    vllm.silent.add("/update_weights")
    with pytest.raises(DeadlineExceeded):
        plane.update(plan, plan.windows[0], Deadline.after(0.2)).result(soon)
    vllm.released.set()
    assert [call.path for call in vllm.posts()] == ["/start_weight_update", "/update_weights"]


CALLS = {
    "/pause": lambda plane, plan, soon: plane.pause(PauseMode.KEEP, CachePolicy.KEEP, soon),
    "/resume": lambda plane, plan, soon: plane.resume(soon),
    "/start_weight_update": lambda plane, plan, soon: plane.begin(plan, soon),
    "/update_weights": lambda plane, plan, soon: plane.update(plan, plan.windows[0], soon).result(soon),
    "/finish_weight_update": lambda plane, plan, soon: plane.finish(plan, soon),
    "/update_weight_version": lambda plane, plan, soon: plane.mark("x", soon),
    "/shutdown_weight_transfer_engine": lambda plane, plan, soon: plane.close_channel(soon),
}


@pytest.mark.parametrize("body", [b"", b"<html>ok</html>", {"status": "ok"}, ["paused"]])
def test_a_200_that_is_not_the_success_of_its_call_is_garbled(control, vllm, plan, soon, body):
    plane = control("0.32.0")
    for path, call in CALLS.items():
        vllm.instead[path] = (200, body)
        with pytest.raises(GarbledReply, match=path):
            call(plane, plan, soon)


def test_closing_twice_is_fine(control):
    plane = control("0.32.0")
    plane.close()
    plane.close()
