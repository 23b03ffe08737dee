"""The contracts of the two-call releases, besides what test_contracts.py holds against all contracts alike."""

from __future__ import annotations

import copy

import pytest
from contract_checks_legacy import breaches
from contract_rules import Contract
from extract_contract import CONTRACTS, load, recorded
from extract_contract import breaches as breaches_of_any
from weightwire.versions import within
from weightwire_vllm_legacy.plugin import BEFORE, SINCE

VERSIONS = [version for version in recorded(CONTRACTS) if within(version, since=SINCE, before=BEFORE)]


def _contract(version):
    return Contract(version, copy.deepcopy(load(version, CONTRACTS)))


def test_the_four_minor_releases_have_contracts_of_their_first_and_last_patch():
    assert VERSIONS == ["0.17.0", "0.17.1", "0.18.0", "0.18.1", "0.19.0", "0.19.1", "0.20.0", "0.20.1", "0.20.2"]


def test_the_patches_of_a_minor_release_do_not_differ():
    for version in VERSIONS:
        assert load(version, CONTRACTS) == load(f"{version.rpartition('.')[0]}.0", CONTRACTS)


def test_what_changed_within_the_range_is_one_release_and_known():
    old, new = load("0.17.1", CONTRACTS), load("0.18.0", CONTRACTS)
    assert {name for name in old | new if old.get(name) != new.get(name)} == {
        "errors.are_told",
        "nccl.counts_replicas",
        "worker.update.waits_for_the_device",
    }
    assert load("0.18.0", CONTRACTS) == load("0.20.2", CONTRACTS)


def _put(fact, value):
    return lambda facts: facts.__setitem__(fact, value)


def _put_inside(fact, key, value):
    return lambda facts: facts[fact].__setitem__(key, value)


def _drop_inside(fact, key):
    return lambda facts: facts[fact].pop(key)


UPDATE, ROUTE = "nccl.update_info.fields", "route./update_weights"
REQUIRED = {"type": "int", "required": True}
CHANGES = {
    "a route is dropped": (ROUTE, lambda facts: facts.pop(ROUTE)),
    "a route that is only read is dropped": ("route./is_paused", lambda facts: facts.pop("route./is_paused")),
    "a verb changes": ("route./resume", _put_inside("route./resume", "verb", "PUT")),
    "a start appears": ("route./start_weight_update", _put("route./start_weight_update", {"verb": "POST"})),
    "the format leaves the update": (UPDATE, _drop_inside(UPDATE, "is_checkpoint_format")),
    "the format is another by default": (
        UPDATE,
        _put_inside(UPDATE, "is_checkpoint_format", {"type": "bool", "required": False, "default": False}),
    ),
    "a field of update is renamed": (UPDATE, lambda facts: facts[UPDATE].update(keys=facts[UPDATE].pop("names"))),
    "a field of init is added and required": (
        "nccl.init_info.fields",
        _put_inside("nccl.init_info.fields", "extra", REQUIRED),
    ),
    "a success is worded anew": (ROUTE, _put_inside(ROUTE, "success", [{"message": "Done"}])),
    "an update call no longer closes": ("worker.update.is_all_of_it", _put("worker.update.is_all_of_it", False)),
    "any backend name is taken": ("backend.takes_any_name", _put("backend.takes_any_name", True)),
    "replicas are counted otherwise": ("nccl.counts_replicas", _put("nccl.counts_replicas", False)),
    "errors are kept back": ("errors.are_told", _put("errors.are_told", False)),
    "our variable is not shown": (
        "server_info.shows_declared_variables",
        _put("server_info.shows_declared_variables", False),
    ),
    "experts are no longer told": ("config.parallel.fields", _put("config.parallel.fields", ["data_parallel_size"])),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_contract_that_is_altered_is_noticed_by_the_facts_id(change):
    fact, alter = CHANGES[change]
    contract = _contract("0.20.2")
    alter(contract.facts)
    assert any(breach.startswith(f"{fact}: ") for breach in breaches(contract)), breaches(contract)


@pytest.mark.parametrize(("version", "whole"), [("0.20.2", True), ("0.21.0", False)])
def test_a_release_of_the_other_form_is_no_contract_of_ours(version, whole):
    assert (breaches(_contract(version)) == []) is whole
    assert breaches_of_any(_contract(version)) == []
