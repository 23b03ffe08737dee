from __future__ import annotations

import pytest
from weightwire.errors import ManifestError
from weightwire.messages import Manifest, TensorMeta
from weightwire.vllm.behaviour import behaviour
from weightwire_vllm_legacy import unloadable

LAYER = "model.layers.0"
SCALAR = {"logit_scale": (), "pooler.scale": (1,)}
LINEAR = {f"{LAYER}.mlp.down_proj.weight": (4, 4), f"{LAYER}.mlp.down_proj.input_scale": ()}
CACHE = {f"{LAYER}.self_attn.k_proj.weight": (4, 4), f"{LAYER}.self_attn.k_proj.k_scale": (1,)}


def _refuse(version, tensors):
    metas = tuple(TensorMeta(name, "float32", shape) for name, shape in tensors.items())
    release = tuple(int(part) for part in version.split("."))
    unloadable.refuse(Manifest(metas, ((0, len(metas)),)), version, behaviour(release))


@pytest.mark.parametrize("version", ["0.17.1", "0.19.1"])
def test_modules_of_single_numbers_alone_are_refused_by_name(version):
    with pytest.raises(ManifestError, match=r"logit_scale, pooler\.scale") as caught:
        _refuse(version, LINEAR | SCALAR)
    assert version in caught.value.message
    assert "0.20" in caught.value.hint


def test_a_scale_beside_its_weight_is_fine():
    _refuse("0.17.1", LINEAR)


def test_scales_of_a_kv_cache_are_refused_wherever_they_stand():
    with pytest.raises(ManifestError, match="k_scale"):
        _refuse("0.19.1", CACHE)


def test_from_0_20_on_all_of_it_is_loaded():
    _refuse("0.20.0", LINEAR | SCALAR | CACHE)
