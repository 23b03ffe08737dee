"""``weightwire.recover``: torn engines, without a session and without a model."""

from __future__ import annotations

import pytest
import weightwire
from weightwire import discovery
from weightwire.discovery import Catalogue
from weightwire.errors import ConfigurationError, EngineRefused, StateError
from weightwire.registry import ControlPlaneEntry, Registry
from weightwire.states import EngineState

URLS = ("http://e0", "http://e1")
controls: dict[str, object] = {}


def identify(http, deadline):
    return "1.5"


def control(http, version, options):
    return controls[http.url]


@pytest.fixture
def world(make_world, monkeypatch):
    made = make_world(URLS)
    registry = Registry()
    registry.add_control_plane(
        ControlPlaneEntry(
            name="log",
            engine="log",
            since="1",
            before="2",
            identify=f"{__name__}:identify",
            factory=f"{__name__}:control",
        )
    )
    monkeypatch.setattr(discovery, "plugins", lambda: Catalogue(records=(), registry=registry))
    monkeypatch.setitem(globals(), "controls", {one.url: one for one in made.controls})
    return made


def test_a_torn_engine_is_paused_flushed_and_left_paused(world):
    world.control.found = EngineState.TORN
    found = weightwire.recover(URLS[0], world.options)
    assert [info.state for info in found] == [EngineState.TORN]
    assert world.log == ["probe", "pause", "flush", "mark recovered", "close control"]
    assert world.control.paused


def test_a_whole_engine_is_left_as_it_is(world):
    world.controls[1].found = EngineState.TORN
    assert [info.state for info in weightwire.recover(URLS, world.options)] == [EngineState.WHOLE, EngineState.TORN]
    assert not world.controls[0].paused
    assert world.log.count("flush") == 1


def test_a_lost_engine_is_named_when_the_others_are_recovered(world):
    world.controls[0].found, world.controls[1].found = EngineState.LOST, EngineState.TORN
    with pytest.raises(StateError, match="http://e0"):
        weightwire.recover(URLS, world.options)
    assert world.log.count("flush") == 1
    assert world.log.count("close control") == 2


def test_an_engine_that_can_not_be_flushed_is_told_in_its_own_words(world):
    world.control.found = EngineState.TORN
    world.control.fail["flush"] = EngineRefused("It said no.", server_text="not now")
    with pytest.raises(EngineRefused, match="not now") as caught:
        weightwire.recover(URLS[0], world.options)
    assert caught.value.where.engine == URLS[0]
    assert world.log[-1] == "close control"


@pytest.mark.parametrize("target", [(), ("http://e0", "http://e0")], ids=["none", "twice"])
def test_engines_must_be_named_once_each(world, target):
    with pytest.raises(ConfigurationError, match=r"at least one address|mean one engine"):
        weightwire.recover(target, world.options)


@pytest.mark.parametrize("options", [5, "timeout=3", [("timeout", 8)]])
def test_options_that_are_none_are_refused(options):
    with pytest.raises(ConfigurationError, match=r"weightwire\.Options or a mapping"):
        weightwire.recover(URLS[0], options)
