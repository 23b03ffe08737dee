"""What a trainer says is decoded, or refused in words."""

from __future__ import annotations

import msgspec
import pytest
from weightwire.engine_wire import EngineInit, EngineUpdate
from weightwire.errors import CompatibilityError, ManifestError, StateError
from weightwire.messages import Manifest, TensorMeta
from weightwire_vllm_engine import wire

TENSORS = (TensorMeta("a.weight", "float32", (2, 3)), TensorMeta("b.weight", "bfloat16", (4,)))
DIGEST = Manifest(TENSORS, ()).digest


def init_fields(**changes: object) -> dict[str, object]:
    """``init_info`` as it comes out of the server's JSON."""
    init = EngineInit(
        wire_version=1,
        transport="gloo",
        address="127.0.0.1",
        port=4711,
        rank_offset=1,
        world_size=2,
        timeout=30.0,
        packed=True,
        buffer_bytes=1024,
        tensors=TENSORS,
        digest=DIGEST,
    )
    return msgspec.json.decode(msgspec.json.encode(init)) | changes


def update_fields(**changes: object) -> dict[str, object]:
    update = EngineUpdate(action="receive", round_id="r-1", start=0, stop=2, digest=DIGEST)
    return msgspec.json.decode(msgspec.json.encode(update)) | changes


def test_what_the_trainer_encodes_is_decoded_as_it_was():
    assert wire.decode_init(init_fields()).tensors == TENSORS
    update = wire.decode_update(update_fields())
    assert (update.start, update.stop, update.digest) == (0, 2, DIGEST)
    assert update.is_checkpoint_format
    assert update.update_kind == "dense"


@pytest.mark.parametrize("version", [2, 0, "1", None])
def test_another_wire_version_is_refused_with_both_versions_and_what_to_install(version):
    with pytest.raises(CompatibilityError, match=f"wire version {version!r}.* speaks 1") as caught:
        wire.decode_init(init_fields(wire_version=version))
    assert "weightwire-vllm-engine" in caught.value.hint


def test_a_trainer_that_speaks_to_another_engine_is_refused():
    with pytest.raises(CompatibilityError, match="wire version None"):
        wire.decode_init({"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2})


def test_a_field_of_the_wrong_type_is_named():
    with pytest.raises(CompatibilityError, match=r"Expected `int`, got `str` - at `\$.port`"):
        wire.decode_init(init_fields(port="4711"))


def test_a_missing_field_is_named():
    fields = init_fields()
    del fields["digest"]
    with pytest.raises(CompatibilityError, match="missing required field `digest`"):
        wire.decode_init(fields)


def test_a_field_of_a_later_release_is_let_pass():
    assert wire.decode_init(init_fields(priority=3)).port == 4711


def test_a_transport_that_this_release_cannot_join_is_refused():
    with pytest.raises(CompatibilityError, match=r"transport 'nixl'; .* joins gloo, nccl"):
        wire.decode_init(init_fields(transport="nixl"))


def test_the_id_of_a_communicator_comes_through_json_as_it_was():
    said = init_fields() | {"transport": "nccl", "unique_id": msgspec.to_builtins(bytes(range(128)))}
    assert wire.decode_init(said).unique_id == bytes(range(128))


def test_a_manifest_that_was_changed_on_the_way_is_refused():
    with pytest.raises(ManifestError, match=DIGEST):
        wire.decode_init(init_fields(tensors=init_fields()["tensors"][:1]))


@pytest.mark.parametrize("action", ["stage", "commit", "abort", "nonsense"])
def test_an_action_that_this_release_does_not_know_is_refused_in_words(action):
    with pytest.raises(CompatibilityError, match=f"action {action!r}; .* knows receive") as caught:
        wire.decode_update(update_fields(action=action))
    assert "--upgrade" in caught.value.hint


def test_an_update_of_another_manifest_is_refused():
    init = wire.decode_init(init_fields())
    with pytest.raises(StateError, match=f"for the manifest feed; the channel was opened for {DIGEST}"):
        wire.check_window(init, wire.decode_update(update_fields(digest="feed")))


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (1, 0), (0, 3)])
def test_a_window_outside_of_the_manifest_is_refused(start, stop):
    init = wire.decode_init(init_fields())
    with pytest.raises(ManifestError, match="2 tensors"):
        wire.check_window(init, wire.decode_update(update_fields(start=start, stop=stop)))


def test_every_window_of_the_manifest_passes():
    init = wire.decode_init(init_fields())
    for start, stop in [(0, 2), (0, 1), (1, 2), (2, 2)]:
        wire.check_window(init, wire.decode_update(update_fields(start=start, stop=stop)))
