from __future__ import annotations

import base64
import json

import msgspec
import pytest
from weightwire.errors import CompatibilityError, ManifestError
from weightwire.messages import Window
from weightwire_vllm import wire
from weightwire_vllm.dialect import choose
from weightwire_vllm.ours import OursOver

STORE = b'"master_address":"10.0.0.7","master_port":4711,"rank_offset":1,"world_size":3'
PACKING = b'"packed":true,"packed_buffer_size_bytes":1024,"packed_num_buffers":1'
ROWS = b'"names":["a.weight","a.bias"],"dtype_names":["bfloat16","bfloat16"],"shapes":[[2,3],[2]]'


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("0.21.0", "0.21"),
        ("0.24.0", "0.21"),
        ("0.25.0", "0.25"),
        ("0.27.1", "0.25"),
        ("0.28.0rc2", "0.28"),
        ("0.33.0+cpu", "0.28"),
        ("0.40.0", "0.28"),
    ],
)
def test_the_version_chooses_the_dialect(version, name):
    assert choose(version).name == name


def test_a_two_call_release_is_refused_with_the_plugin_that_speaks_it():
    with pytest.raises(CompatibilityError, match="two calls") as caught:
        choose("0.20.2")
    assert "weightwire-vllm-legacy" in caught.value.hint


@pytest.mark.parametrize("version", ["0.21.0", "0.25.1"])
def test_before_0_28_init_holds_the_store_alone(version, request_to_join):
    assert choose(version).init(request_to_join).body == b'{"init_info":{' + STORE + b"}}"


def test_from_0_28_on_init_settles_the_packing(request_to_join):
    assert choose("0.28.0").init(request_to_join).body == b'{"init_info":{' + STORE + b"," + PACKING + b"}}"


@pytest.mark.parametrize("version", ["0.21.0", "0.25.1"])
def test_before_0_28_each_update_says_the_packing(version, plan):
    post = choose(version).update(plan, plan.windows[0])
    assert (post.path, post.body) == ("/update_weights", b'{"update_info":{' + ROWS + b"," + PACKING + b"}}")


def test_from_0_28_on_an_update_holds_names_alone(plan):
    assert choose("0.33.0").update(plan, plan.windows[0]).body == b'{"update_info":{' + ROWS + b"}}"


def test_a_scalar_travels_with_an_empty_shape(plan):
    body = json.loads(choose("0.33.0").update(plan, plan.windows[1]).body)
    assert body == {"update_info": {"names": ["b.scale"], "dtype_names": ["float32"], "shapes": [[]]}}


@pytest.mark.parametrize(
    ("version", "body"), [("0.21.0", b'{"is_checkpoint_format":true}'), ("0.25.0", None), ("0.33.0", None)]
)
def test_only_0_21_to_0_24_want_a_body_at_start(version, body):
    assert choose(version).start().body == body


@pytest.mark.parametrize(
    ("version", "body"),
    [
        ("0.24.0", None),
        ("0.26.0", None),
        ("0.27.0", b'{"weight_version":"7"}'),
        ("0.28.0", b'{"weight_version":"7"}'),
    ],
)
def test_finish_says_the_version_from_0_27_on(version, body):
    assert choose(version).finish("7").body == body


def test_finish_without_a_version_leaves_the_servers_alone():
    assert choose("0.33.0").finish(None).body is None


def _with_unique_id(request):
    meeting = msgspec.structs.replace(request.rendezvous, unique_id=bytes(range(128)))
    return msgspec.structs.replace(request, rendezvous=meeting)


def test_a_unique_id_takes_the_stores_place_from_0_30_on(request_to_join):
    body = json.loads(choose("0.30.0").init(_with_unique_id(request_to_join)).body)["init_info"]
    assert base64.b64decode(body.pop("nccl_unique_id_b64"), validate=True) == bytes(range(128))
    assert body == {
        "rank_offset": 1,
        "world_size": 3,
        "packed": True,
        "packed_buffer_size_bytes": 1024,
        "packed_num_buffers": 1,
    }


@pytest.mark.parametrize("version", ["0.21.0", "0.27.1", "0.29.0"])
def test_a_unique_id_is_refused_where_the_server_needs_a_store(version, request_to_join):
    with pytest.raises(CompatibilityError, match=r"0\.30"):
        choose(version).init(_with_unique_id(request_to_join))


@pytest.mark.parametrize("version", ["0.21.0", "0.25.0", "0.33.0"])
def test_an_empty_window_is_refused_since_0_33_would_wait_for_ever(version, plan):
    with pytest.raises(ManifestError, match="no tensors"):
        choose(version).update(plan, Window(5, 2, 2))


def test_a_mark_travels_as_new_version():
    assert wire.mark("weightwire:updating:r1").body == b'{"new_version":"weightwire:updating:r1"}'


@pytest.mark.parametrize("version", ["0.22.1", "0.26.0", "0.32.0"])
def test_over_our_engine_start_and_finish_are_the_dialects_own(version):
    stock = choose(version)
    ours = OursOver(stock)
    assert (ours.name, ours.start(), ours.finish("7")) == (stock.name, stock.start(), stock.finish("7"))
