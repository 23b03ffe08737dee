"""What is registered can be imported, and registering imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

from weightwire import registry
from weightwire_torch.plugin import weightwire_register


def test_registering_imports_no_torch() -> None:
    program = "import sys, weightwire_torch.plugin; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_what_is_no_model_is_refused_without_an_import_of_torch() -> None:
    program = (
        "import sys, weightwire\n"
        "try: weightwire.connect('http://127.0.0.1:9', 5)\n"
        "except weightwire.CompatibilityError as error: assert 'builtins.int' in str(error)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_everything_registered_can_be_loaded() -> None:
    found = registry.Registry()
    found.registering = "weightwire-torch"
    weightwire_register(found)
    assert set(found.weight_sources) == {"module", "checkpoint"}
    assert found.data_planes["gloo"].backends == ("weightwire",)
    for source in found.weight_sources.values():
        assert callable(registry.load(source.claim))
        assert callable(registry.load(source.factory))
    for plane in found.data_planes.values():
        assert callable(registry.load(plane.factory))
        assert isinstance(registry.load(plane.usable)(), str)
    assert registry.load(found.data_planes["gloo"].usable)() == ""
