"""Choosing, with entries whose import strings name this module's own functions."""

import sys
import types

import pytest
from weightwire import negotiate
from weightwire.deadlines import Deadline
from weightwire.errors import CompatibilityError, ConfigurationError, PluginError
from weightwire.http import Http
from weightwire.messages import EngineInfo, EngineKind, ReceiverLimits
from weightwire.options import Options
from weightwire.registry import ControlPlaneEntry, DataPlaneEntry, Registry, WeightSourceEntry, load


@pytest.fixture
def elsewhere(monkeypatch):
    """A module that entries can name."""
    module = types.ModuleType("ww_elsewhere")
    module.answers = {"a": None, "b": None}
    module.asked = []

    def identify(which):
        def ask(http, deadline):
            module.asked.append(which)
            return module.answers[which]

        return ask

    module.identify_a, module.identify_b = identify("a"), identify("b")
    module.make = lambda http, version, options: ("control", http.url, version)
    module.old = lambda http, version, options: ("old control", version)
    module.Plane = lambda: "plane"
    module.Other = lambda: "other plane"
    module.no_gpu = lambda: "there is no GPU here"
    module.claim_nothing = lambda model: 0
    module.claim_plain = lambda model: 10
    module.claim_sharded = lambda model: 30
    module.source = lambda model, options: ("source", model)
    module.sharded = lambda model, options: ("sharded source", model)
    monkeypatch.setitem(sys.modules, "ww_elsewhere", module)
    return module


def control(name, since, before, *, identify="a", factory="make"):
    return ControlPlaneEntry(
        name=name,
        engine="vllm",
        since=since,
        before=before,
        identify=f"ww_elsewhere:identify_{identify}",
        factory=f"ww_elsewhere:{factory}",
    )


@pytest.fixture
def registry():
    registry = Registry()
    registry.registering = "weightwire-vllm"
    registry.add_control_plane(control("vllm", "0.21", "0.34"))
    return registry


def choose(registry, **options):
    http = Http("http://127.0.0.1:1", Options())
    return negotiate.control_plane(registry, http, Options(**options), Deadline.after(5))


def test_the_version_chooses_the_control_plane(registry, elsewhere):
    registry.add_control_plane(control("legacy", "0.17", "0.21", factory="old"))
    elsewhere.answers["a"] = "0.20.2"

    assert choose(registry) == ("old control", "0.20.2")
    assert elsewhere.asked == ["a"], "one question is asked once"


def test_a_version_below_what_is_installed_says_which_distribution_to_install(registry, elsewhere):
    elsewhere.answers["a"] = "0.19.1"

    with pytest.raises(CompatibilityError, match=r"vllm 0\.19\.1 is outside") as caught:
        choose(registry)

    assert caught.value.hint == "pip install weightwire-vllm-legacy"


def test_a_version_above_the_table_is_refused_with_the_flag_that_overrides(registry, elsewhere):
    elsewhere.answers["a"] = "0.35.0"

    with pytest.raises(CompatibilityError) as caught:
        choose(registry)

    assert "--allow-untested" in caught.value.hint
    assert choose(registry, allow_untested=True) == ("control", "http://127.0.0.1:1", "0.35.0")


def test_the_override_warns_and_names_what_was_not_checked(registry, elsewhere, caplog):
    elsewhere.answers["a"] = "0.35.0"

    choose(registry, allow_untested=True)

    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "vllm 0.35.0 was never tested" in record.getMessage()
    assert "routes and payloads" in record.getMessage()


def test_the_override_does_not_reach_below_the_table(registry, elsewhere):
    elsewhere.answers["a"] = "0.16.0"

    with pytest.raises(CompatibilityError):
        choose(registry, allow_untested=True)


def test_a_control_plane_asked_for_by_name_and_wrong_refuses(registry, elsewhere):
    registry.add_control_plane(control("legacy", "0.17", "0.21", factory="old"))
    elsewhere.answers["a"] = "0.32.0"

    with pytest.raises(CompatibilityError, match="legacy") as caught:
        choose(registry, control_plane="legacy")

    assert "set it to 'vllm'" in caught.value.hint


def test_a_newer_release_than_the_only_plane_speaks_to_gets_the_pip_line_of_the_other(elsewhere):
    registry = Registry()
    registry.registering = "weightwire-vllm-legacy"
    registry.add_control_plane(control("legacy", "0.17", "0.21", factory="old"))
    elsewhere.answers["a"] = "0.32.0"

    with pytest.raises(CompatibilityError) as caught:
        choose(registry)

    assert caught.value.hint == "pip install weightwire-vllm"


def test_what_no_plugin_knows_is_said_to_be_no_engine(registry, elsewhere):
    with pytest.raises(CompatibilityError, match="no engine that an installed plugin knows"):
        choose(registry)


def test_without_any_control_plane_the_pip_line_is_given():
    with pytest.raises(PluginError) as caught:
        choose(Registry())

    assert caught.value.hint == "pip install weightwire-vllm"


def test_a_name_that_is_not_installed_lists_what_is(registry):
    with pytest.raises(ConfigurationError, match=r"names the control plane 'x'.*installed are: vllm"):
        choose(registry, control_plane="x")


def info(backend, *, kind=EngineKind.STOCK, device=""):
    return EngineInfo(
        url="http://e",
        engine="vllm",
        version="0.32.0",
        dialect="0.28",
        control_plane="vllm",
        backend=backend,
        kind=kind,
        device=device,
        world_size=1,
        limits=ReceiverLimits(),
    )


def plane(name, *backends, factory="Plane", usable="", priority=0, our_engine_on=""):
    return DataPlaneEntry(
        name=name,
        backends=backends,
        factory=f"ww_elsewhere:{factory}",
        usable=usable,
        priority=priority,
        our_engine_on=our_engine_on,
    )


def test_the_servers_backend_chooses_the_data_plane(elsewhere):
    registry = Registry()
    registry.add_data_plane(plane("nccl", "nccl"))
    registry.add_data_plane(plane("gloo", "ours", factory="Other"))

    assert negotiate.data_plane(registry, [info("ours")], Options()) == ("gloo", "other plane")


def test_the_highest_priority_that_is_usable_wins(elsewhere):
    registry = Registry()
    registry.add_data_plane(plane("gloo", "ours"))
    registry.add_data_plane(plane("nccl", "ours", factory="Other", usable="ww_elsewhere:no_gpu", priority=10))

    assert negotiate.data_plane(registry, [info("ours")], Options())[0] == "gloo"


@pytest.mark.parametrize(
    ("devices", "chosen"),
    [(["cuda"], "nccl"), (["cuda", "cuda"], "nccl"), (["cpu"], "gloo"), (["cuda", "cpu"], "gloo"), ([""], "gloo")],
)
def test_our_engine_is_fed_over_nccl_where_all_of_it_runs_on_gpus(elsewhere, devices, chosen):
    registry = Registry()
    registry.add_data_plane(plane("gloo", "ours"))
    registry.add_data_plane(plane("nccl", "nccl", "ours", factory="Other", priority=10, our_engine_on="cuda"))
    engines = [info("ours", kind=EngineKind.OURS, device=device) for device in devices]

    assert negotiate.data_plane(registry, engines, Options())[0] == chosen
    assert negotiate.data_plane(registry, engines, Options(data_plane="nccl"))[0] == "nccl"


def test_what_a_stock_engine_runs_on_is_not_asked(elsewhere):
    registry = Registry()
    registry.add_data_plane(plane("nccl", "nccl", "ours", our_engine_on="cuda"))

    assert negotiate.data_plane(registry, [info("nccl", device="cpu")], Options())[0] == "nccl"


def test_a_plane_that_our_engines_device_rules_out_says_so(elsewhere):
    registry = Registry()
    registry.add_data_plane(plane("nccl", "ours", our_engine_on="cuda"))

    with pytest.raises(CompatibilityError, match="nccl: our engine at http://e runs on cpu, not on cuda"):
        negotiate.data_plane(registry, [info("ours", kind=EngineKind.OURS, device="cpu")], Options())


def test_a_negative_priority_is_used_only_by_name(elsewhere):
    registry = Registry()
    registry.add_data_plane(plane("shim", "nccl", priority=-1))

    with pytest.raises(CompatibilityError, match="shim: it is used only by name"):
        negotiate.data_plane(registry, [info("nccl")], Options())
    assert negotiate.data_plane(registry, [info("nccl")], Options(data_plane="shim"))[0] == "shim"


def test_each_unusable_data_plane_says_why(elsewhere):
    registry = Registry()
    registry.add_data_plane(plane("nccl", "nccl", usable="ww_elsewhere:no_gpu"))

    with pytest.raises(CompatibilityError, match="nccl: there is no GPU here") as caught:
        negotiate.data_plane(registry, [info("nccl")], Options())

    assert "run the trainer where that plane can be used" in caught.value.hint


def test_engines_with_different_backends_are_not_put_into_one_group(elsewhere):
    with pytest.raises(CompatibilityError, match="one group can't hold both"):
        negotiate.data_plane(Registry(), [info("nccl"), info("ours")], Options())


def source(name, claim, factory):
    return WeightSourceEntry(name=name, claim=f"ww_elsewhere:{claim}", factory=f"ww_elsewhere:{factory}")


def test_the_most_specific_claim_reads_the_model(elsewhere):
    registry = Registry()
    registry.add_weight_source(source("plain", "claim_plain", "source"))
    registry.add_weight_source(source("fsdp2", "claim_sharded", "sharded"))

    assert negotiate.weight_source(registry, "m", Options()) == ("sharded source", "m")
    assert negotiate.weight_source(registry, "m", Options(weight_source="plain")) == ("source", "m")


def test_a_model_that_nobody_claims_gives_the_pip_lines(elsewhere):
    registry = Registry()
    registry.add_weight_source(source("none", "claim_nothing", "source"))

    with pytest.raises(CompatibilityError, match=r"can read a builtins\.dict") as caught:
        negotiate.weight_source(registry, {}, Options())

    assert "weightwire-fsdp2" in caught.value.hint


def test_a_source_is_taken_as_it_is(world):
    assert negotiate.weight_source(Registry(), world.source, Options()) is world.source


@pytest.mark.parametrize("reference", ["ww_not_there:x", "weightwire:not_there"])
def test_an_import_string_that_names_nothing_says_so(reference):
    with pytest.raises(PluginError, match="can't be imported"):
        load(reference)


def test_a_data_plane_that_is_not_installed_gives_the_pip_line(elsewhere):
    with pytest.raises(CompatibilityError, match="none is installed") as caught:
        negotiate.data_plane(Registry(), [info("nccl")], Options())

    assert caught.value.hint == "pip install 'weightwire-torch[nccl]'"


def test_a_source_that_is_named_for_what_it_can_not_read_is_refused(elsewhere):
    registry = Registry()
    registry.add_weight_source(source("none", "claim_nothing", "source"))

    with pytest.raises(ConfigurationError, match=r"'none', which can't read a builtins\.dict") as caught:
        negotiate.weight_source(registry, {}, Options(weight_source="none"))

    assert "unset" in caught.value.hint


@pytest.mark.parametrize("version", ["x", "", "latest"])
def test_a_version_that_is_none_is_said_with_the_address_it_came_from(registry, elsewhere, version):
    elsewhere.answers["a"] = version

    with pytest.raises(CompatibilityError, match=r"http://127\.0\.0\.1:1 says that it is version") as caught:
        choose(registry)

    assert caught.value.where.engine == "http://127.0.0.1:1"
    assert repr(version) in caught.value.message
