from __future__ import annotations

import msgspec
import pytest
from weightwire.engine_wire import WIRE_VERSION, EngineInit, EngineUpdate
from weightwire.errors import ChannelError, ManifestError
from weightwire.messages import ChannelRequest, Manifest, PackGeometry, Rendezvous, TensorMeta, TransferPlan, Window
from weightwire.vllm import our_payloads

MANIFEST = Manifest((TensorMeta("a", "bfloat16", (2, 3)), TensorMeta("b", "float32", ())), ((0, 2),))
GEOMETRY = PackGeometry(packed=True, buffer_bytes=1024, num_buffers=1)
PLAN = TransferPlan(
    round_id="r1", version="7", manifest=MANIFEST, windows=(Window(0, 0, 1), Window(1, 1, 2)), geometry=GEOMETRY
)


class InitBody(msgspec.Struct, forbid_unknown_fields=True):
    init_info: EngineInit


class UpdateBody(msgspec.Struct, forbid_unknown_fields=True):
    update_info: EngineUpdate


def _request(**extra):
    meeting = Rendezvous(address="10.0.0.7", port=4711, world_size=3, timeout=60.0, extra=extra)
    return ChannelRequest(rendezvous=meeting, rank_offset=1, geometry=GEOMETRY, manifest=MANIFEST)


def test_init_brings_the_whole_manifest():
    post = our_payloads.init(_request(transport="gloo"))
    assert post.path == "/init_weight_transfer_engine"
    assert msgspec.json.decode(post.body, type=InitBody).init_info == EngineInit(
        wire_version=WIRE_VERSION,
        transport="gloo",
        address="10.0.0.7",
        port=4711,
        rank_offset=1,
        world_size=3,
        timeout=60.0,
        packed=True,
        buffer_bytes=1024,
        tensors=MANIFEST.tensors,
        digest=MANIFEST.digest,
    )


@pytest.mark.parametrize("encode", [our_payloads.update, our_payloads.receive])
def test_an_update_names_a_window_of_it(encode):
    post = encode(PLAN, PLAN.windows[1])
    assert post.path == "/update_weights"
    assert msgspec.json.decode(post.body, type=UpdateBody).update_info == EngineUpdate(
        action="receive", round_id="r1", start=1, stop=2, digest=MANIFEST.digest
    )


def test_an_empty_window_is_refused_unless_it_is_meant():
    with pytest.raises(ManifestError, match="no tensors"):
        our_payloads.update(PLAN, Window(0, 1, 1))
    post = our_payloads.receive(PLAN, Window(0, 0, 0))
    assert msgspec.json.decode(post.body, type=UpdateBody).update_info.stop == 0


def test_a_plane_that_does_not_say_its_transport_is_refused():
    with pytest.raises(ChannelError, match="which transport"):
        our_payloads.init(_request())
