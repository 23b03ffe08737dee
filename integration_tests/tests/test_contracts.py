"""What the control planes for vLLM send and believe, held against the facts of every release that they speak to."""

from __future__ import annotations

import copy

import pytest
from contract_rules import Contract
from extract_contract import CONTRACTS, breaches, difference, load, record, recorded

VERSIONS = recorded(CONTRACTS)

NOT_RELIED_UPON = {
    "backend.type": "backend.takes_any_name is what we ask",
    "engine.abstract_methods": "the server's plugin implements them, and is run in real servers",
    "engine.constructor": "likewise",
    "nccl.default_packed_buffer_size_bytes": "the size is always said",
    "nccl.init_info.keyword_only": "JSON has keys only",
    "nccl.update_info.keyword_only": "likewise",
    "route./start_draft_weight_update": "draft models are not updated",
    "route./weight_checker": "not called: it sees no linear layer on CPU, and reset zeroes the model",
    "worker.finish.refusals": "asked for below 0.23 alone",
    "worker.start.parameters": "the route's body is what we send",
    "worker.update.takes_a_list": "one update goes to all workers",
}
"""Facts that are kept to show up in a difference, and why no check asks for them."""
TWO_CALLS = {"0.17", "0.18", "0.19", "0.20"}
NOT_RELIED_UPON_THERE = NOT_RELIED_UPON | {"worker.start.refusals": "there is no start"}


def _contract(version):
    return Contract(version, copy.deepcopy(load(version, CONTRACTS)))


def test_every_minor_release_has_a_contract():
    minors = {tuple(version.split(".")[:2]) for version in VERSIONS}
    assert minors == {("0", str(minor)) for minor in range(17, 34)}


@pytest.mark.parametrize("version", VERSIONS)
def test_what_we_send_and_believe_holds(version):
    assert breaches(_contract(version)) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_every_fact_is_asked_for_or_excused(version):
    contract = _contract(version)
    breaches(contract)
    excused = NOT_RELIED_UPON_THERE if version.rpartition(".")[0] in TWO_CALLS else NOT_RELIED_UPON
    assert contract.facts.keys() - contract.asked - excused.keys() == set()


def _drop(fact):
    return lambda facts: facts.pop(fact)


def _rename(fact, old, new):
    def change(facts):
        facts[fact][new] = facts[fact].pop(old)

    return change


def _set(value, *keys):
    def change(facts):
        for key in keys[:-1]:
            facts = facts[key]
        facts[keys[-1]] = value

    return change


FIELD = {"type": "int", "required": True}
CHANGES = {
    "a route is dropped": ("route./pause", _drop("route./pause")),
    "a route that is only read is dropped": ("route./server_info", _drop("route./server_info")),
    "a verb changes": ("route./resume", _set("PUT", "route./resume", "verb")),
    "a query parameter is renamed": ("route./pause", _set({"mode": {}}, "route./pause", "query")),
    "a body becomes required": ("route./start_weight_update", _set(
        {"kind": "fastapi", "required": True, "keys": {}}, "route./start_weight_update", "body"
    )),
    "a body is no longer taken": ("route./update_weights", _set(
        {"kind": "none", "required": False, "keys": {}}, "route./update_weights", "body"
    )),
    "a body's key is renamed": ("route./update_weight_version", _set(
        {"version": {"required": True}}, "route./update_weight_version", "body", "keys"
    )),
    "a success is worded anew": ("route./finish_weight_update", _set(
        [{"message": "Done"}], "route./finish_weight_update", "success"
    )),
    "a field of init is renamed": ("nccl.init_info.fields", _rename("nccl.init_info.fields", "world_size", "size")),
    "a field of init is added and required": (
        "nccl.init_info.fields", _set(FIELD, "nccl.init_info.fields", "extra")
    ),
    "a field of init changes its type": (
        "nccl.init_info.fields", _set({"type": "str", "required": True}, "nccl.init_info.fields", "master_port")
    ),
    "a field of update is renamed": ("nccl.update_info.fields", _rename("nccl.update_info.fields", "names", "keys")),
    "a mode of pause goes": ("pause.modes", _set("Literal['abort', 'wait']", "pause.modes")),
    "the nccl engine goes": ("backend.registered", _set(["ipc"], "backend.registered")),
    "a failed update leaves its session open": (
        "worker.update.failure_closes_the_update", _set(False, "worker.update.failure_closes_the_update")
    ),
    "a second start is refused in other words": ("worker.start.refusals", _set(["busy"], "worker.start.refusals")),
    "the store's key changes": ("rendezvous.store_keys", _set(["uid/{…}"], "rendezvous.store_keys")),
    "sleeping is told from paused": ("sleep.is_sleeping", _set(["self.asleep"], "sleep.is_sleeping")),
    "the gauge goes": ("sleep.metric", _set(False, "sleep.metric")),
    "errors are no longer told": ("errors.are_told", _set(False, "errors.are_told")),
    "our variable is no longer shown": (
        "server_info.shows_declared_variables", _set(False, "server_info.shows_declared_variables")
    ),
    "an update call becomes all of it": ("worker.update.is_all_of_it", _set(True, "worker.update.is_all_of_it")),
    "packs are no longer waited for": (
        "worker.update.waits_for_the_device", _set(False, "worker.update.waits_for_the_device")
    ),
    "replicas are no longer counted": ("nccl.counts_replicas", _set(False, "nccl.counts_replicas")),
    "a field of the parallel configuration goes": ("config.parallel.fields", _set([], "config.parallel.fields")),
    "workers lose the call that does nothing": ("worker.check_health", _set(False, "worker.check_health")),
    "the version is no longer kept": ("weight_version.at_start", _set(None, "weight_version.at_start")),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_contract_that_is_altered_is_noticed_by_the_facts_id(change):
    fact, alter = CHANGES[change]
    contract = _contract("0.32.0")
    alter(contract.facts)
    assert any(breach.startswith(f"{fact}: ") for breach in breaches(contract)), breaches(contract)


def test_an_altered_contract_of_the_oldest_four_phase_release_is_noticed_too():
    contract = _contract("0.21.0")
    contract.facts["route./start_weight_update"]["body"] = {"kind": "none", "required": False, "keys": {}}
    contract.facts["worker.finish.refusals"] = ["no"]
    found = breaches(contract)
    assert {breach.split(": ")[0] for breach in found} == {"route./start_weight_update", "worker.finish.refusals"}


def test_a_difference_names_each_fact_with_before_and_after():
    lines = difference({"a": 1, "b": 2}, {"b": 3, "c": 4})
    assert lines == [
        '  a\n    - 1\n    + "(absent)"',
        "  b\n    - 2\n    + 3",
        '  c\n    - "(absent)"\n    + 4',
    ]


def test_contracts_are_written_a_fact_a_line_and_read_back(tmp_path):
    facts = load("0.33.0", CONTRACTS)
    record("0.33.0", facts, contracts=tmp_path)
    written = tmp_path / "vllm-0.33.0.json"
    assert load("0.33.0", tmp_path) == facts
    assert len(written.read_text().splitlines()) == len(facts) + 2
    assert written.read_bytes() == (CONTRACTS / written.name).read_bytes()
