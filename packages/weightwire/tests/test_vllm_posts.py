from __future__ import annotations

import json

import msgspec
import pytest
from weightwire.errors import CompatibilityError, ManifestError
from weightwire.messages import (
    CachePolicy,
    ChannelRequest,
    Manifest,
    PackGeometry,
    PauseMode,
    Rendezvous,
    TensorMeta,
    TransferPlan,
    Window,
)
from weightwire.vllm import posts

MANIFEST = Manifest((TensorMeta("a", "bfloat16", (2, 3)), TensorMeta("b", "float32", ())), ((0, 2),))
GEOMETRY = PackGeometry(packed=True, buffer_bytes=1024, num_buffers=1)
PLAN = TransferPlan(round_id="r", version="7", manifest=MANIFEST, windows=(Window(0, 0, 2),), geometry=GEOMETRY)
REQUEST = ChannelRequest(
    rendezvous=Rendezvous(address="10.0.0.7", port=4711, world_size=3),
    rank_offset=2,
    geometry=GEOMETRY,
    manifest=MANIFEST,
)


@pytest.mark.parametrize("mode", list(PauseMode))
@pytest.mark.parametrize(("cache", "said"), [(CachePolicy.RESET, "true"), (CachePolicy.KEEP, "false")])
def test_pause_always_says_both_values(mode, cache, said):
    post = posts.pause(mode, cache)
    assert (post.path, post.body, post.params) == ("/pause", None, {"mode": mode.value, "clear_cache": said})


def test_a_part_in_a_channel_names_the_store_and_the_ranks():
    post = posts.init(posts.store_init(REQUEST))
    assert json.loads(post.body) == {
        "init_info": {"master_address": "10.0.0.7", "master_port": 4711, "rank_offset": 2, "world_size": 3}
    }


def test_a_unique_id_is_refused_where_a_store_is_needed():
    meeting = msgspec.structs.replace(REQUEST.rendezvous, unique_id=bytes(128))
    with pytest.raises(CompatibilityError, match=r"0\.30"):
        posts.store_init(msgspec.structs.replace(REQUEST, rendezvous=meeting))


def test_tensors_travel_as_three_lists():
    rows = {"names": ["a", "b"], "dtype_names": ["bfloat16", "float32"], "shapes": [[2, 3], []]}
    packing = {"packed": True, "packed_buffer_size_bytes": 1024, "packed_num_buffers": 1}
    assert json.loads(posts.update(posts.rows(PLAN, PLAN.windows[0])).body) == {"update_info": rows}
    assert json.loads(posts.update(posts.packed_rows(PLAN, PLAN.windows[0])).body) == {"update_info": rows | packing}


@pytest.mark.parametrize("encode", [posts.rows, posts.packed_rows])
def test_an_empty_window_is_refused(encode):
    with pytest.raises(ManifestError, match="no tensors"):
        encode(PLAN, Window(3, 2, 2))
