from __future__ import annotations

import msgspec
import pytest
from weightwire.engine_wire import WIRE_VERSION, EngineInit, EngineUpdate
from weightwire.errors import ChannelError, ManifestError
from weightwire.messages import Window
from weightwire_vllm.dialect import choose
from weightwire_vllm.engine_payloads import OursOver


class InitBody(msgspec.Struct, forbid_unknown_fields=True):
    init_info: EngineInit


class UpdateBody(msgspec.Struct, forbid_unknown_fields=True):
    update_info: EngineUpdate


def test_init_brings_the_whole_manifest(request_to_join, manifest):
    post = OursOver(choose("0.32.0")).init(request_to_join)
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
        tensors=manifest.tensors,
        digest=manifest.digest,
    )


def test_an_update_names_a_window_of_it(plan, manifest):
    post = OursOver(choose("0.32.0")).update(plan, plan.windows[1])
    assert post.path == "/update_weights"
    assert msgspec.json.decode(post.body, type=UpdateBody).update_info == EngineUpdate(
        action="receive", round_id="r1", start=2, stop=3, digest=manifest.digest
    )


def test_an_empty_window_is_refused(plan):
    with pytest.raises(ManifestError, match="no tensors"):
        OursOver(choose("0.32.0")).update(plan, Window(0, 1, 1))


def test_a_plane_that_does_not_say_its_transport_is_refused(request_to_join):
    silent = msgspec.structs.replace(request_to_join.rendezvous, extra={})
    with pytest.raises(ChannelError, match="which transport"):
        OursOver(choose("0.32.0")).init(msgspec.structs.replace(request_to_join, rendezvous=silent))


@pytest.mark.parametrize("version", ["0.22.1", "0.26.0", "0.32.0"])
def test_start_and_finish_are_the_dialects_own(version):
    stock = choose(version)
    ours = OursOver(stock)
    assert (ours.name, ours.start(), ours.finish("7")) == (stock.name, stock.start(), stock.finish("7"))
