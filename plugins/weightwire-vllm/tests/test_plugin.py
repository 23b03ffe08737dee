from __future__ import annotations

import subprocess
import sys

from weightwire.registry import Registry, load
from weightwire_vllm import plugin

CODE = """
import sys, weightwire_vllm.plugin
heavy = {"torch", "vllm", "weightwire_vllm.control", "weightwire.vllm.probe"} & set(sys.modules)
assert not heavy, heavy
"""


def test_what_is_registered_can_be_loaded():
    registry = Registry()
    plugin.weightwire_register(registry)
    entry = registry.control_planes["vllm"]
    assert (entry.engine, entry.since, entry.before) == ("vllm", "0.21", "0.34")
    assert all(callable(load(reference)) for reference in (entry.identify, entry.factory, entry.serve_args))


def test_discovery_imports_nothing_heavy():
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=60)
