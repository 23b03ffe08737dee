"""Routes, statuses and words of the reference engine, release by release."""

from __future__ import annotations

import pytest
import requests
from weightwire_testing.reference import Backend, EngineSettings

RELEASES = (
    "0.17.1",
    "0.20.2",
    "0.21.0",
    "0.22.1",
    "0.23.0",
    "0.25.1",
    "0.27.1",
    "0.28.0",
    "0.30.0",
    "0.32.0",
    "0.33.0",
)
SINCE = {
    "/start_weight_update": 21,
    "/finish_weight_update": 21,
    "/abort_requests": 26,
    "/start_draft_weight_update": 26,
    "/update_weight_version": 27,
    "/weight_info": 27,
    "/shutdown_weight_transfer_engine": 32,
}
ROW = {"names": ["model.norm.weight"], "dtype_names": ["float32"], "shapes": [[128]]}
PLACE = {"master_address": "127.0.0.1", "master_port": 9, "rank_offset": 1, "world_size": 2}


def at(version: str, **more: object) -> EngineSettings:
    return EngineSettings(version=version, backend=Backend.NCCL, timeout=0.3, **more)


def error(reply: requests.Response) -> str:
    content = reply.json()["error"]
    assert set(content) == {"message", "type", "param", "code"}
    assert content["code"] == reply.status_code
    return content["message"]


@pytest.mark.parametrize("version", RELEASES)
def test_a_release_has_its_routes_and_no_others(version, trainer) -> None:
    there = trainer(at(version))
    paths = there.get("/openapi.json").json()["paths"]
    assert there.get("/version").json() == {"version": version}
    for path, since in SINCE.items():
        exists = int(version.split(".")[1]) >= since
        assert (path in paths) is exists
        if not exists:
            reply = there.post(path)
            assert (reply.status_code, reply.json()) == (404, {"detail": "Not Found"})
    assert ("requestBody" in paths["/update_weights"]["post"]) is (version >= "0.32")


def test_without_dev_mode_only_serving_is_left(trainer) -> None:
    there = trainer(at("0.32.0", dev_mode=False))
    assert there.get("/health").status_code == there.get("/v1/models").status_code == 200
    assert there.says()
    for path in ("/update_weights", "/pause", "/start_weight_update", "/collective_rpc"):
        assert there.post(path).status_code == 404
    assert there.get("/server_info").status_code == 404
    assert "/update_weights" not in there.get("/openapi.json").json()["paths"]


def test_a_get_on_a_post_route_is_405(trainer) -> None:
    reply = trainer().get("/pause")
    assert (reply.status_code, reply.json()) == (405, {"detail": "Method Not Allowed"})


def test_successes_have_vllms_bodies(trainer) -> None:
    there = trainer()
    assert there.post("/pause", mode="keep").json() == {"status": "paused"}
    assert there.get("/is_paused").json() == {"is_paused": True}
    assert there.post("/resume").json() == {"status": "resumed"}
    assert there.get("/is_paused").json() == {"is_paused": False}
    assert there.start().json() == {"message": "Weight update started"}
    assert there.finish().json() == {"message": "Weight update finished"}
    assert there.post("/shutdown_weight_transfer_engine").json() == {"message": "Weight transfer shut down"}
    assert there.post("/abort_requests", {}).json() == {"status": "aborted", "aborted": 0}
    assert there.post("/collective_rpc", {"method": "check_health"}).json() == {"results": [None]}


def test_pause_and_resume_can_be_said_twice(trainer) -> None:
    there = trainer()
    assert [there.post("/pause", mode="keep").status_code for _ in range(2)] == [200, 200]
    assert [there.post("/resume").status_code for _ in range(2)] == [200, 200]


def test_a_wrong_pause_mode_or_flag_is_400(trainer) -> None:
    there = trainer()
    wrong = there.post("/pause", mode="bogus")
    assert wrong.status_code == 400
    assert "Input should be 'abort', 'wait' or 'keep'" in error(wrong)
    assert there.post("/pause", clear_cache="perhaps").status_code == 400


@pytest.mark.parametrize("version", ["0.21.0", "0.22.1", "0.24.0"])
def test_start_without_a_body_is_400_from_0_21_to_0_24(version, trainer) -> None:
    there = trainer(at(version))
    reply = there.post("/start_weight_update")
    assert (reply.status_code, error(reply)) == (400, "Invalid JSON format")
    assert there.post("/start_weight_update", {}).status_code == 200


@pytest.mark.parametrize("version", ["0.22.1", "0.32.0"])
def test_a_payload_that_is_missing_is_400(version, trainer) -> None:
    there = trainer(at(version))
    for path, key in (("/init_weight_transfer_engine", "init_info"), ("/update_weights", "update_info")):
        reply = there.post(path, {})
        assert reply.status_code == 400
        assert key in error(reply)
        assert there.post(path).status_code == 400


def test_a_body_without_a_json_content_type_is_read_up_to_0_31_only(trainer) -> None:
    body = b'{"init_info": {}}'
    engine = trainer().engine
    for version, status, word in (("0.31.0", 500, "Invalid init_info"), ("0.32.0", 400, "Field required")):
        engine.reset(at(version, checkpoint=engine.settings.checkpoint))
        url = engine.url + "/init_weight_transfer_engine"
        reply = requests.post(url, data=body, headers={"content-type": "text/plain"}, timeout=9)
        assert reply.status_code == status
        assert word in error(reply)


def test_a_payload_of_another_type_is_400_where_types_are_checked(trainer) -> None:
    there = trainer(at("0.32.0"))
    assert there.post("/init_weight_transfer_engine", {"init_info": [1]}).status_code == 400
    assert there.post("/update_weights", {"update_info": "all"}).status_code == 400


def test_a_body_that_is_no_object_is_500_where_it_is_read_by_hand(trainer) -> None:
    reply = trainer(at("0.31.0")).post("/update_weights", [1])
    assert (reply.status_code, error(reply)) == (500, "'list' object has no attribute 'get'")


@pytest.mark.parametrize(
    ("version", "extra"),
    [("0.20.2", "packed"), ("0.27.1", "packed"), ("0.28.0", "zzz"), ("0.29.0", "nccl_unique_id_b64")],
)
def test_an_unknown_key_in_init_info_is_500_in_a_dataclass_words(version, extra, trainer) -> None:
    reply = trainer(at(version)).post("/init_weight_transfer_engine", {"init_info": PLACE | {extra: True}})
    assert reply.status_code == 500
    assert error(reply).startswith(
        "Call to collective_rpc method failed: Worker failed with error 'Invalid init_info for "
        "NCCLWeightTransferEngine: NCCLWeightTransferInitInfo.__init__() got an unexpected keyword argument "
        f"'{extra}''"
    )


def test_a_missing_key_in_init_info_is_500(trainer) -> None:
    there = trainer(at("0.32.0"))
    for init_info, says in (
        ({"rank_offset": 1}, "'world_size'"),
        ({"rank_offset": 1, "world_size": 2}, "need nccl_unique_id_b64, or both"),
        (PLACE | {"nccl_unique_id_b64": "AAAA"}, "not both"),
    ):
        reply = there.post("/init_weight_transfer_engine", {"init_info": init_info})
        assert reply.status_code == 500
        assert says in error(reply)


@pytest.mark.parametrize(
    ("version", "extra"),
    [("0.21.0", "is_checkpoint_format"), ("0.22.1", "update_kind"), ("0.25.1", "update_kind"), ("0.28.0", "packed")],
)
def test_an_unknown_key_in_update_info_is_500(version, extra, trainer) -> None:
    there = trainer(at(version))
    there.start()
    reply = there.post("/update_weights", {"update_info": ROW | {extra: True}})
    assert reply.status_code == 500
    assert f"unexpected keyword argument '{extra}'" in error(reply)


def test_lists_of_different_length_are_500(trainer) -> None:
    there = trainer(at("0.32.0"))
    there.start()
    reply = there.post("/update_weights", {"update_info": ROW | {"shapes": []}})
    assert "`shapes` should be of the same size as `names`: got 0 and 1" in error(reply)


def test_nobody_listening_is_500_within_the_time_out(trainer) -> None:
    reply = trainer(at("0.32.0")).post("/init_weight_transfer_engine", {"init_info": PLACE})
    assert reply.status_code == 500


def test_update_before_init_is_500(trainer) -> None:
    there = trainer(at("0.32.0"))
    there.start()
    reply = there.post("/update_weights", {"update_info": ROW})
    assert "NCCL weight transfer not initialized" in error(reply)


@pytest.mark.parametrize("path", ["/init_weight_transfer_engine", "/start_weight_update", "/update_weights"])
def test_without_a_backend_every_call_says_so(path, trainer) -> None:
    there = trainer(EngineSettings(backend=Backend.NONE))
    reply = there.post(path, {"init_info": PLACE, "update_info": ROW})
    assert reply.status_code == 500
    assert "Weight transfer not configured" in error(reply)
    info = there.get("/server_info?config_format=json").json()
    assert info["vllm_config"]["weight_transfer_config"] is None


@pytest.mark.parametrize(
    ("version", "finish"),
    [
        ("0.22.1", "start_weight_update must be called before finish"),
        ("0.23.0", "without a matching start_weight_update"),
    ],
)
def test_calls_out_of_order_are_500_and_do_no_harm(version, finish, trainer) -> None:
    there = trainer(at(version))
    assert finish in error(there.finish())
    assert "must be called before update_weights" in error(there.post("/update_weights", {"update_info": ROW}))
    assert there.start().status_code == 200
    assert "already active" in error(there.start())
    assert there.finish().status_code == 200
    assert there.says()


def test_0_17_says_nothing_of_an_error(trainer) -> None:
    reply = trainer(at("0.17.1")).post("/init_weight_transfer_engine", {"init_info": {}})
    assert (reply.status_code, reply.text) == (500, "Internal Server Error")


def test_the_weight_version_is_default_until_it_is_set(trainer) -> None:
    there = trainer()
    assert there.get("/weight_info").json() == {"weight_version": "default"}
    assert there.post("/update_weight_version", {"new_version": "a"}).json() == {"success": True, "new_version": "a"}
    assert there.get("/weight_info").json() == {"weight_version": "a"}
    assert there.post("/update_weight_version", {}).status_code == 400
    assert there.post("/update_weight_version", {"new_version": 3}).status_code == 400


def test_finish_sets_the_weight_version_only_when_it_succeeds(trainer) -> None:
    there = trainer()
    assert there.finish("early").status_code == 500
    assert there.get("/weight_info").json() == {"weight_version": "default"}
    there.start()
    assert there.finish("now").status_code == 200
    assert there.get("/weight_info").json() == {"weight_version": "now"}


def test_shutdown_is_refused_in_an_update(trainer) -> None:
    there = trainer()
    there.start()
    assert "during a weight update" in error(there.post("/shutdown_weight_transfer_engine"))


def test_there_is_no_draft_model(trainer) -> None:
    assert "draft" in error(trainer().post("/start_draft_weight_update"))


def test_server_info_tells_the_set_up(trainer, tiny_checkpoint) -> None:
    there = trainer(EngineSettings(backend=Backend.NCCL, workers=2, data_parallel=3))
    config = there.get("/server_info?config_format=json").json()["vllm_config"]
    assert config["weight_transfer_config"] == {"backend": "nccl"}
    assert config["model_config"]["model"] == str(tiny_checkpoint)
    assert config["model_config"]["dtype"] == "torch.float32"
    assert config["parallel_config"]["world_size"] == 2
    assert isinstance(there.get("/server_info").json()["vllm_config"], str)
    assert there.get("/server_info?config_format=yaml").status_code == 400
    assert there.get("/get_world_size").json() == {"world_size": 6}
    assert there.get("/get_world_size?include_dp=false").json() == {"world_size": 2}


@pytest.mark.parametrize(("version", "backend"), [("0.21.0", "ipc"), ("0.22.1", "weightwire")])
def test_ours_goes_by_an_old_name_where_names_are_few(version, backend, trainer) -> None:
    info = trainer(EngineSettings(version=version)).get("/server_info?config_format=json").json()
    assert info["vllm_config"]["weight_transfer_config"] == {"backend": backend}
    assert info["vllm_env"]["VLLM_WEIGHTWIRE_ENGINE"]


def test_asleep_is_told_from_paused_by_the_gauge_alone(trainer) -> None:
    there = trainer()
    there.post("/pause", mode="keep")
    assert there.get("/is_sleeping").json() == {"is_sleeping": True}
    assert 'sleep_state="awake"} 1.0' in there.get("/metrics").text
    there.post("/resume")
    assert there.post("/sleep").json() == {"status": "sleeping", "level": 1}
    assert there.get("/is_paused").json() == {"is_paused": True}
    assert 'sleep_state="awake"} 0.0' in there.get("/metrics").text
    assert there.post("/wake_up").status_code == 200
    assert there.says()


def test_the_model_is_listed(trainer) -> None:
    card = trainer(EngineSettings(served_name="tiny")).get("/v1/models").json()["data"][0]
    assert (card["id"], card["max_model_len"]) == ("tiny", 512)


def test_calls_are_remembered_in_order(trainer) -> None:
    there = trainer()
    there.post("/pause", mode="keep")
    there.get("/nowhere")
    assert [(c.method, c.path, c.status) for c in there.engine.calls()] == [
        ("POST", "/pause", 200),
        ("GET", "/nowhere", 404),
    ]
    there.engine.reset()
    assert there.engine.calls() == []
    assert there.get("/is_paused").json() == {"is_paused": False}


def test_rpcs_other_than_check_health_are_not_offered(trainer) -> None:
    there = trainer()
    assert there.post("/collective_rpc", {}).status_code == 400
    assert "check_health only" in error(there.post("/collective_rpc", {"method": "reload_weights"}))
