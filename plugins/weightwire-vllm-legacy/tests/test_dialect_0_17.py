from __future__ import annotations

import json

import msgspec
import pytest
from weightwire.errors import ChannelError, CompatibilityError, ManifestError
from weightwire.messages import ChannelRequest, Manifest, PackGeometry, Rendezvous, TensorMeta, TransferPlan, Window
from weightwire_vllm_legacy.dialect_0_17 import ToOurs, ToStock

MANIFEST = Manifest((TensorMeta("a.weight", "bfloat16", (2, 3)), TensorMeta("b.bias", "float32", (3,))), ((0, 2),))
GEOMETRY = PackGeometry(packed=True, buffer_bytes=1024, num_buffers=1)
PLAN = TransferPlan(round_id="r1", version="7", manifest=MANIFEST, windows=(Window(0, 0, 2),), geometry=GEOMETRY)
REQUEST = ChannelRequest(
    rendezvous=Rendezvous(address="10.0.0.7", port=4711, world_size=3, extra={"transport": "gloo"}),
    rank_offset=1,
    geometry=GEOMETRY,
    manifest=MANIFEST,
)


def test_init_names_the_store_and_nothing_of_packing():
    assert ToStock().init(REQUEST).body == (
        b'{"init_info":{"master_address":"10.0.0.7","master_port":4711,"rank_offset":1,"world_size":3}}'
    )


def test_an_update_says_rows_packing_and_the_format():
    post = ToStock().update(PLAN, PLAN.windows[0])
    assert (post.path, post.answer) == ("/update_weights", ("message", "Weights updated"))
    assert post.body == (
        b'{"update_info":{"names":["a.weight","b.bias"],"dtype_names":["bfloat16","float32"],"shapes":[[2,3],[3]],'
        b'"packed":true,"packed_buffer_size_bytes":1024,"packed_num_buffers":1,"is_checkpoint_format":true}}'
    )


def test_unpacked_is_said_as_well():
    plan = msgspec.structs.replace(PLAN, geometry=PackGeometry(packed=False, buffer_bytes=1024, num_buffers=1))
    assert json.loads(ToStock().update(plan, plan.windows[0]).body)["update_info"]["packed"] is False


def test_a_flush_is_an_update_of_nothing_that_waits_for_nothing():
    said = json.loads(ToStock().flush(PLAN).body)["update_info"]
    assert (said["names"], said["dtype_names"], said["shapes"]) == ([], [], [])
    assert (said["packed"], said["is_checkpoint_format"]) == (False, True)


def test_an_empty_window_is_no_update_since_it_would_be_a_flush():
    for calls in (ToStock(), ToOurs()):
        with pytest.raises(ManifestError, match="no tensors"):
            calls.update(PLAN, Window(0, 1, 1))


def test_a_unique_id_is_refused_since_the_server_needs_a_store():
    meeting = msgspec.structs.replace(REQUEST.rendezvous, unique_id=bytes(128))
    with pytest.raises(CompatibilityError, match=r"0\.30"):
        ToStock().init(msgspec.structs.replace(REQUEST, rendezvous=meeting))


def test_to_our_engine_the_payloads_are_ours_and_the_format_goes_unsaid():
    calls = ToOurs()
    init = json.loads(calls.init(REQUEST).body)["init_info"]
    update = json.loads(calls.update(PLAN, PLAN.windows[0]).body)["update_info"]
    flush = json.loads(calls.flush(PLAN).body)["update_info"]
    assert (init["transport"], init["digest"]) == ("gloo", MANIFEST.digest)
    assert update == {"action": "receive", "round_id": "r1", "start": 0, "stop": 2, "digest": MANIFEST.digest}
    assert flush == update | {"stop": 0}


def test_a_plane_that_does_not_say_its_transport_is_refused():
    meeting = msgspec.structs.replace(REQUEST.rendezvous, extra={})
    with pytest.raises(ChannelError, match="which transport"):
        ToOurs().init(msgspec.structs.replace(REQUEST, rendezvous=meeting))
