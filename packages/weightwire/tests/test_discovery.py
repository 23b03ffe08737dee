"""Real entry points: small distributions are written to disk and found by importlib.metadata."""

import sys
from importlib.metadata import EntryPoint, distributions
from pathlib import Path

import pytest
from weightwire.discovery import discover
from weightwire.errors import PluginError

GOOD = """
from weightwire import hookimpl
from weightwire.registry import DataPlaneEntry

@hookimpl
def weightwire_register(registry):
    registry.add_data_plane(DataPlaneEntry(name={name!r}, backends=("x",), factory="nowhere:Plane"))
"""


class Site:
    """A directory with installed distributions, one module each."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def install(self, distribution: str, code: str, entry: str = "plane") -> None:
        module = f"ww_test_{distribution.replace('-', '_')}"
        (self.path / f"{module}.py").write_text(code)
        info = self.path / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[weightwire]\n{entry} = {module}\n")

    def entry_points(self) -> list[EntryPoint]:
        return [point for dist in distributions(path=[str(self.path)]) for point in dist.entry_points]


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield Site(tmp_path)
    for name in set(sys.modules) - before:
        if name.startswith("ww_test_"):
            del sys.modules[name]


def test_what_a_plugin_registers_is_found_under_its_distribution(site):
    site.install("one", GOOD.format(name="p"))

    found = discover(site.entry_points())

    assert list(found.registry.data_planes) == ["p"]
    assert found.registry.owner("data plane", "p") == "one"
    assert [(r.distribution, r.version, r.error) for r in found.records] == [("one", "1.0", "")]


def test_two_distributions_with_one_entry_point_name_are_both_loaded(site):
    site.install("one", GOOD.format(name="p"), entry="same")
    site.install("two", GOOD.format(name="q"), entry="same")

    assert sorted(discover(site.entry_points()).registry.data_planes) == ["p", "q"]


def test_two_distributions_that_register_one_name_are_refused_by_both_names(site):
    site.install("one", GOOD.format(name="p"))
    site.install("two", GOOD.format(name="p"))

    found = discover(site.entry_points())

    (broken,) = found.broken
    assert "the data plane 'p': one and two" in broken.error
    assert found.registry.owner("data plane", "p") == "one"


BROKEN = {
    "raises when imported": "raise RuntimeError('no gpu')",
    "imports what is missing": "import module_that_is_not_there",
    "raises when registering": "from weightwire import hookimpl\n@hookimpl\ndef weightwire_register(registry): 1 / 0",
    "asks for an argument that is not there": (
        "from weightwire import hookimpl\n@hookimpl\ndef weightwire_register(registry, colour): pass"
    ),
    "is a coroutine": "from weightwire import hookimpl\n@hookimpl\nasync def weightwire_register(registry): pass",
    "is no Python": "def (",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_is_reported_and_the_others_still_load(site, kind):
    site.install("broken", BROKEN[kind])
    site.install("good", GOOD.format(name="p"))

    found = discover(site.entry_points())

    assert [record.distribution for record in found.broken] == ["broken"]
    assert list(found.registry.data_planes) == ["p"]


def test_a_broken_plugin_is_fatal_when_asked_for(site):
    site.install("broken", "raise RuntimeError('no gpu')")

    with pytest.raises(PluginError, match=r"'plane' of broken can't be loaded: RuntimeError: no gpu"):
        discover(site.entry_points(), strict=True)


def test_what_a_plugin_registered_before_it_failed_is_taken_back(site):
    site.install("half", GOOD.format(name="p") + "    raise RuntimeError('late')\n")

    assert discover(site.entry_points()).registry.data_planes == {}


@pytest.mark.parametrize(("limit", "names"), [("one", ["p"]), ("one, two", ["p", "q"]), ("", [])])
def test_the_environment_can_limit_which_are_loaded(site, monkeypatch, limit, names):
    site.install("one", GOOD.format(name="p"))
    site.install("two", GOOD.format(name="q"))
    monkeypatch.setenv("WEIGHTWIRE_PLUGINS", limit)

    assert sorted(discover(site.entry_points()).registry.data_planes) == names
