from __future__ import annotations

import subprocess
import sys

import pytest
from weightwire.errors import CompatibilityError
from weightwire.http import Http
from weightwire.options import Options
from weightwire.planes import ControlPlane
from weightwire.registry import Registry, load
from weightwire_vllm_legacy import plugin
from weightwire_vllm_legacy.control import create
from weightwire_vllm_legacy.serve_args import advise

CODE = """
import sys, weightwire_vllm_legacy.plugin
heavy = {"torch", "vllm", "weightwire_vllm_legacy.control", "weightwire.vllm.probe"} & set(sys.modules)
assert not heavy, heavy
"""


def test_what_is_registered_can_be_loaded():
    registry = Registry()
    plugin.weightwire_register(registry)
    entry = registry.control_planes["vllm-legacy"]
    assert (entry.engine, entry.since, entry.before) == ("vllm", "0.17", "0.21")
    assert all(callable(load(reference)) for reference in (entry.identify, entry.factory, entry.serve_args))


def test_discovery_imports_nothing_heavy():
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=60)


@pytest.mark.parametrize("version", ["0.17.0", "0.17.1", "0.20.2+cpu"])
def test_the_factory_makes_a_control_plane(version):
    assert isinstance(create(Http("http://127.0.0.1:1", Options()), version, Options()), ControlPlane)


@pytest.mark.parametrize("version", ["0.21.0", "0.32.0", "0.40.0"])
def test_the_factory_refuses_the_four_phase_releases_also_untested_ones(version):
    with pytest.raises(CompatibilityError, match=r"ends with 0\.20") as caught:
        create(Http("http://127.0.0.1:1", Options()), version, Options(allow_untested=True))
    assert "weightwire-vllm" in caught.value.hint


@pytest.mark.parametrize("version", ["0.17.1", "0.20.2"])
def test_a_server_is_started_stock_or_with_ours_under_the_name_ipc(version):
    stock, ours = advise(version)
    assert stock.command[-1] == '{"backend":"nccl"}'
    assert (ours.install, ours.command[-1]) == (("weightwire-vllm-engine",), '{"backend":"ipc"}')


@pytest.mark.parametrize("version", ["0.16.0", "0.21.0"])
def test_releases_outside_the_range_get_no_advice(version):
    with pytest.raises(CompatibilityError, match="outside the releases"):
        advise(version)
