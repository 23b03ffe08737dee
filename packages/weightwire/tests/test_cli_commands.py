"""push, status, recover, plugins and serve-args, over planes without a network."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import pytest
from weightwire import discovery
from weightwire.cli.app import run
from weightwire.discovery import Catalogue, PluginRecord
from weightwire.errors import EngineRefused, EngineUnreachable, ManifestError, StateError
from weightwire.registry import (
    ControlPlaneEntry,
    DataPlaneEntry,
    Registry,
    ServeAdvice,
    WeightSourceEntry,
)
from weightwire.states import RECOVERED, EngineState

URLS = ("http://e0", "http://e1")
here: Mapping[str, Callable[..., object]] = {}
"""What the import strings below lead to; each test fills it anew."""


def identify(http, deadline):
    return "1.5"


def control(http, version, options):
    return here["control"](http, options)


def plane():
    return here["plane"]()


def claim(model):
    return 10


def source(model, options):
    return here["source"](model)


def advise(version):
    command = ("log", "serve", "MODEL", "--config", '{"backend":"log"}')
    notes = ("Listen on loopback.",)
    return (
        ServeAdvice(title="stock", install=(), env={"LOG_MODE": "a b"}, command=command, notes=notes),
        ServeAdvice(title="ours", install=("log-engine",), env={}, command=command),
    )


def registry() -> Registry:
    found = Registry()
    found.registering = "weightwire-log"
    found.add_control_plane(
        ControlPlaneEntry(
            name="log",
            engine="log",
            since="1.0",
            before="2.0",
            identify=f"{__name__}:identify",
            factory=f"{__name__}:control",
            serve_args=f"{__name__}:advise",
        )
    )
    found.add_data_plane(DataPlaneEntry(name="log", backends=("log",), factory=f"{__name__}:plane"))
    found.add_weight_source(WeightSourceEntry(name="log", claim=f"{__name__}:claim", factory=f"{__name__}:source"))
    return found


RECORD = PluginRecord(distribution="weightwire-log", version="1.2", entry_point="log = log")
BROKEN = PluginRecord(distribution="weightwire-x", version="1", entry_point="x = x", error="no module x")


@pytest.fixture
def world(make_world, monkeypatch):
    made = make_world(URLS)
    catalogue = Catalogue(records=(RECORD,), registry=registry())
    monkeypatch.setattr(discovery, "plugins", lambda: catalogue)
    controls = {made_control.url: made_control for made_control in made.controls}
    made.seen = []

    def control_of(http, options):
        made.seen.append(options)
        return controls[http.url]

    monkeypatch.setitem(
        globals(),
        "here",
        {
            "control": control_of,
            "plane": lambda: made.plane,
            "source": lambda model: made.source,
        },
    )
    return made


@pytest.fixture
def checkpoint(tmp_path):
    (tmp_path / "step-7").mkdir()
    return str(tmp_path / "step-7")


def shown(capsys):
    out, err = capsys.readouterr()
    return json.loads(out), err


# push


def test_push_brings_the_checkpoint_and_shows_the_phases(world, checkpoint, capsys):
    assert run(["push", checkpoint, *URLS]) == 0
    out, err = capsys.readouterr()
    phases = ["preflight", "pause", "begin", "transfer", "commit", "verify", "resume"]
    assert [line.split()[0] for line in out.splitlines()[:-1]] == phases
    assert out.splitlines()[-1].startswith("2 engines now serve step-7: 48 B in ")
    assert err.startswith(f"warning: The model that {URLS[0]}, {URLS[1]} serves is not on this machine")
    assert len(err.splitlines()) == 1
    assert world.control.version == "step-7"
    assert not world.control.paused


def test_push_writes_the_receipt_as_json(world, checkpoint, capsys):
    assert run(["push", checkpoint, URLS[0], "--json", "--weight-version", "v9"]) == 0
    found, _ = shown(capsys)
    assert set(found) == {"checkpoint", "receipt", "seconds", "bytes_per_second"}
    assert found["receipt"]["version"] == "v9"
    assert found["receipt"]["engines"] == [URLS[0]]
    assert found["receipt"]["stats"]["nbytes"] == 48
    assert found["seconds"] == pytest.approx(sum(found["receipt"]["phases"].values()))


def test_push_passes_the_pause_the_cache_and_the_options_on(world, checkpoint, monkeypatch):
    asked = []
    monkeypatch.setattr(world.control, "pause", lambda mode, cache, deadline: asked.append((mode, cache)))
    words = ["--pause", "wait", "--cache", "keep", "--timeout", "7", "--no-tls-verify", "--header", "A: b"]
    assert run(["push", checkpoint, URLS[0], *words]) == 0
    assert asked == [("wait", "keep")]
    assert (world.seen[0].timeout, world.seen[0].tls_verify, world.seen[0].headers) == (7.0, False, {"A": "b"})


def test_options_come_from_the_flag_then_the_environment_then_the_file(world, checkpoint, monkeypatch, tmp_path):
    (tmp_path / "weightwire.toml").write_text("timeout = 1\nport = 1\nbucket_bytes = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEIGHTWIRE_TIMEOUT", "2")
    monkeypatch.setenv("WEIGHTWIRE_PORT", "2")
    assert run(["push", checkpoint, URLS[0], "--timeout", "3"]) == 0
    options = world.seen[0]
    assert (options.timeout, options.port, options.bucket_bytes) == (3.0, 2, 1)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("WEIGHTWIRE_TIMEOUT", "soon", "the environment variable WEIGHTWIRE_TIMEOUT is wrong"),
        ("WEIGHTWIRE_TIMEOUTS", "1", "write WEIGHTWIRE_TIMEOUT"),
        ("WEIGHTWIRE_CONFIG", "nowhere.toml", "which is no file"),
    ],
)
def test_a_wrong_variable_is_named_before_anything_is_called(
    world, checkpoint, monkeypatch, capsys, *, variable, value, said
):
    monkeypatch.setenv(variable, value)
    assert run(["push", checkpoint, URLS[0]]) == 2
    assert said in capsys.readouterr().err
    assert world.log == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "99999"], "0 to 65535"),
        (["--timeout", "0"], "above 0"),
        (["--header", "no colon"], "headers"),
        (["--num-buckets", "0"], "at least 1"),
    ],
)
def test_a_flag_out_of_range_is_refused_as_a_variable_is(world, checkpoint, capsys, words, said):
    assert run(["push", checkpoint, URLS[0], *words]) == 2
    assert said in capsys.readouterr().err
    assert world.log == []


@pytest.mark.parametrize("option", ["control-plane", "data-plane", "weight-source"])
def test_a_plugin_that_is_asked_for_and_not_installed_is_refused_by_name(world, checkpoint, capsys, option):
    assert run(["push", checkpoint, URLS[0], f"--{option}", "nothing"]) == 2
    said = capsys.readouterr().err
    assert "'nothing', which is not installed" in said
    assert "weightwire plugins" in said


def test_push_of_something_that_is_no_directory_is_refused(world, tmp_path, capsys):
    assert run(["push", str(tmp_path / "nowhere"), URLS[0]]) == 2
    assert "is not there" in capsys.readouterr().err
    assert world.log == []


@pytest.mark.parametrize("version", [" ", "a\nb", "weightwire:x:torn", "x" * 201])
def test_a_version_that_no_engine_should_be_told_is_refused_before_anything_is_connected(
    world, checkpoint, version, capsys
):
    assert run(["push", checkpoint, URLS[0], "--weight-version", version]) == 2
    assert "--weight-version" in capsys.readouterr().err
    assert world.log == []


def test_the_same_engine_twice_is_refused(world, checkpoint, capsys):
    assert run(["push", checkpoint, URLS[0], URLS[0]]) == 2
    assert "mean one engine" in capsys.readouterr().err


def test_a_manifest_that_is_refused_leaves_with_6_and_nothing_changed(world, checkpoint, monkeypatch, capsys):
    def refuse():
        raise ManifestError("A name is there twice.")

    monkeypatch.setattr(world.source, "manifest", refuse)
    assert run(["push", checkpoint, URLS[0]]) == 6
    assert "A name is there twice." in capsys.readouterr().err
    assert not {"pause", "begin", "init"} & set(world.log)


def test_a_source_that_raises_leaves_a_torn_engine_and_3(world, checkpoint, capsys):
    world.source.fail_at = 1
    assert run(["push", checkpoint, URLS[0], "--json"]) == 3
    found, _ = shown(capsys)
    assert found["error"]["type"] == "UpdateFailed"
    assert found["error"]["engine_states"] == {URLS[0]: "torn"}
    assert world.control.paused


def test_a_failure_before_the_first_byte_leaves_with_1(world, checkpoint, capsys):
    world.control.fail["pause"] = EngineUnreachable("gone for a moment")
    assert run(["push", checkpoint, URLS[0]]) == 1
    assert "is whole" in capsys.readouterr().err


def test_ctrl_c_says_what_each_engine_is_left_with(world, checkpoint, capsys):
    world.plane.fail["send"] = KeyboardInterrupt()
    assert run(["push", checkpoint, URLS[0]]) == 130
    assert capsys.readouterr().err.endswith(f"error: Interrupted.\n  {URLS[0]} is torn\n")
    assert world.control.version.endswith(":torn")


# status


def test_status_says_what_each_engine_is(world, capsys):
    assert run(["status", *URLS]) == 0
    out = capsys.readouterr().out
    assert all(url in out for url in URLS)
    assert "whole, serving" in out
    assert "log 1.0" in out
    assert "ours, backend log" in out


def test_status_of_a_torn_engine_leaves_with_3(world, capsys):
    world.controls[1].found = EngineState.TORN
    assert run(["status", *URLS]) == 3
    assert "torn, serving: it must not serve; a full push mends it" in capsys.readouterr().out


def test_status_shows_the_engines_that_answer_when_one_does_not(world, capsys):
    world.control.fail["probe"] = EngineUnreachable("Nothing answers.", hint="start it", server_text="?")
    assert run(["status", *URLS]) == 4
    out = capsys.readouterr().out
    assert all(text in out for text in ("Nothing answers.", "start it", "whole, serving"))


def test_a_torn_engine_outweighs_one_that_does_not_answer(world):
    world.control.fail["probe"] = EngineUnreachable("Nothing answers.")
    world.controls[1].found = EngineState.TORN
    assert run(["status", *URLS]) == 3


def test_status_of_an_engine_that_sleeps_leaves_with_3(world):
    world.control.fail["probe"] = StateError("It sleeps.")
    assert run(["status", URLS[0]]) == 3


def test_status_writes_one_object_with_a_row_an_engine(world, capsys):
    world.controls[1].fail["probe"] = EngineUnreachable("Nothing answers.")
    assert run(["status", *URLS, "--json"]) == 4
    found, err = shown(capsys)
    assert err == ""
    first, second = found["engines"]
    assert (first["url"], first["info"]["state"], first["info"]["world_size"]) == (URLS[0], "whole", 1)
    assert second["error"]["type"] == "EngineUnreachable"
    assert "info" not in second


# recover


def test_recover_flushes_the_torn_and_leaves_the_whole_alone(world, capsys):
    world.controls[1].found = EngineState.TORN
    assert run(["recover", *URLS]) == 0
    out = capsys.readouterr().out
    assert f"{URLS[0]} was whole: left as it is" in out
    assert f"{URLS[1]} was torn: flushed, and left paused" in out
    assert out.splitlines()[-1] == f"Now push all weights: weightwire push CHECKPOINT {URLS[1]}"
    assert (world.controls[0].paused, world.controls[1].paused) == (False, True)
    assert world.log.count("flush") == 1


def test_after_recover_status_says_what_has_been_done_and_what_has_not(world, capsys):
    world.control.found = EngineState.TORN
    assert run(["recover", *URLS]) == 0
    assert world.control.version == RECOVERED
    assert world.controls[1].version != RECOVERED, "one that was whole is left as it is"
    capsys.readouterr()
    assert run(["status", URLS[0]]) == 3
    assert "torn, paused: recovered; it must not serve before a full push has reached it" in capsys.readouterr().out


def test_recover_of_an_engine_that_takes_no_mark_is_no_failure(world):
    world.control.found = EngineState.TORN
    world.control.fail["mark recovered"] = EngineRefused("no")
    assert run(["recover", URLS[0]]) == 0


def test_recover_says_as_json_what_it_flushed(world, capsys):
    world.control.found = EngineState.TORN
    assert run(["recover", URLS[0], "--json"]) == 0
    found, _ = shown(capsys)
    assert found["flushed"] == [URLS[0]]
    assert found["found"][0]["state"] == "torn"


def test_recover_of_a_lost_engine_leaves_with_3(world, capsys):
    world.control.found = EngineState.LOST
    assert run(["recover", URLS[0]]) == 3
    assert "restart the server" in capsys.readouterr().err
    assert "close control" in world.log


# plugins


def test_plugins_lists_what_each_registers(world, capsys):
    assert run(["plugins"]) == 0
    out = capsys.readouterr().out
    assert "weightwire-log 1.2 (log = log)" in out
    assert "control plane  log" in out


def test_a_broken_plugin_is_shown_with_its_error_and_leaves_with_5(monkeypatch, capsys):
    monkeypatch.setattr(discovery, "plugins", lambda: Catalogue(records=(BROKEN,), registry=Registry()))
    assert run(["plugins", "--json"]) == 5
    (plugin,) = shown(capsys)[0]["plugins"]
    assert (plugin["distribution"], plugin["registers"], plugin["error"]) == ("weightwire-x", [], "no module x")


def test_no_plugins_at_all_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(discovery, "plugins", lambda: Catalogue(records=(), registry=Registry()))
    assert run(["plugins"]) == 0
    assert "pip install weightwire-vllm" in capsys.readouterr().out


# serve-args


def test_serve_args_prints_what_can_be_pasted(world, capsys):
    assert run(["serve-args", "log==1.5", "--model", "a model"]) == 0
    assert capsys.readouterr().out == (
        "# Either: stock\n"
        "# Listen on loopback.\n"
        "LOG_MODE='a b' \\\n"
        "  log serve 'a model' --config '{\"backend\":\"log\"}'\n"
        "\n"
        "# Or: ours\n"
        "pip install log-engine\n"
        "log serve 'a model' --config '{\"backend\":\"log\"}'\n"
    )


def test_serve_args_writes_the_words_as_json(world, capsys):
    assert run(["serve-args", "log==1.5", "--json"]) == 0
    found, _ = shown(capsys)
    assert (found["engine"], found["version"]) == ("log", "1.5")
    assert [one["title"] for one in found["advice"]] == ["stock", "ours"]
    assert found["advice"][0]["command"][2] == "MODEL"


@pytest.mark.parametrize(
    ("requirement", "code", "said"),
    [
        ("log", 2, "ENGINE==X"),
        ("log==", 2, "ENGINE==X"),
        ("log==new", 6, "is no version"),
        ("log==2.0", 6, "1.0 up to, not including, 2.0"),
        ("log==2.0", 6, "--allow-untested (WEIGHTWIRE_ALLOW_UNTESTED=1)"),
        ("vllm==0.32.0", 5, "pip install weightwire-vllm"),
        ("sglang==1", 5, "weightwire plugins"),
    ],
)
def test_a_release_that_nobody_knows_is_refused(world, requirement, code, said, capsys):
    assert run(["serve-args", requirement]) == code
    assert said in capsys.readouterr().err
