"""The reference engine held against the facts of every release: what it takes, offers and says is vLLM's."""

from __future__ import annotations

import inspect

import pytest
from extract_contract import CONTRACTS, load, recorded
from weightwire.messages import PauseMode
from weightwire_testing.reference import EngineSettings, worker
from weightwire_testing.reference.release import Release
from weightwire_testing.reference.routes import ROUTES, openapi
from weightwire_testing.reference.stock_group import KEY
from weightwire_testing.reference.stock_payloads import REQUIRED, init_fields, update_fields

VERSIONS = recorded(CONTRACTS)
NOT_OFFERED = {"/weight_checker"}
OWN = {
    "/openapi.json",
    "/health",
    "/metrics",
    "/v1/models",
    "/v1/completions",
    "/sleep",
    "/wake_up",
    "/reset_prefix_cache",
}
"""Routes that are not weight transfer's, so that no contract has them."""


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param


@pytest.fixture
def facts(version):
    return load(version, CONTRACTS)


@pytest.mark.parametrize(("payload", "fields"), [("init_info", init_fields), ("update_info", update_fields)])
def test_payloads_have_the_fields_of_the_release(payload, fields, version, facts):
    ours = {name: default is REQUIRED for name, default in fields(Release.of(version)).items()}
    theirs = {name: field["required"] for name, field in facts[f"nccl.{payload}.fields"].items()}
    assert ours == theirs


def test_routes_and_verbs_are_those_of_the_release(version, facts):
    theirs = {name.removeprefix("route."): fact["verb"] for name, fact in facts.items() if name.startswith("route.")}
    settings = EngineSettings(version=version)
    ours = {route.path: route.method for route in ROUTES if route.exists(settings) and route.path not in OWN}
    assert ours == {path: verb for path, verb in theirs.items() if path not in NOT_OFFERED}


def test_openapi_shows_the_bodies_that_the_framework_reads(version, facts):
    paths = openapi(EngineSettings(version=version))["paths"]
    for name, fact in facts.items():
        path = name.removeprefix("route.")
        if name.startswith("route.") and path not in NOT_OFFERED:
            shown = "requestBody" in paths[path][fact["verb"].lower()]
            assert (path, shown) == (path, fact["body"]["kind"] == "fastapi")


def test_a_start_needs_a_body_where_the_release_reads_one(version, facts):
    start = facts.get("route./start_weight_update")
    assert Release.of(version).two_call is (start is None)
    assert Release.of(version).start_needs_body is (start is not None and start["body"]["required"])


def test_behaviour_is_the_releases(version, facts):
    release = Release.of(version)
    assert release.failed_update_closes is facts.get("worker.update.failure_closes_the_update", False)
    assert release.since(29) is facts["worker.update.takes_a_list"]
    assert release.since(32) is not facts["packed.scalars_fail"]
    assert release.since(22) is facts["backend.takes_any_name"]
    said_at = facts["worker.start.parameters"] or facts["nccl.update_info.fields"]
    assert release.kernel_format is ("is_checkpoint_format" in str(said_at))
    assert all(f"'{mode}'" in facts["pause.modes"] for mode in PauseMode)
    assert KEY.partition("/")[0] in str(facts["rendezvous.store_keys"])


def test_refusals_are_in_the_words_of_the_release(facts):
    said = inspect.getsource(worker)
    for refusal in facts.get("worker.start.refusals", []) + facts.get("worker.finish.refusals", []):
        assert refusal in said or "draft" in refusal
