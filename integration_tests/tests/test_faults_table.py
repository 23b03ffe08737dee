"""What the table of faults promises, and that docs/faults.md shows the table as it is."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from cells import PHASES, Found, Row, cells, differences, real_cells, rows
from table import DOCS, between, summary
from vital_signs import slope

DIALECTS = ("0.17.1", "0.20.2", "0.21.0", "0.22.1", "0.25.1", "0.28.0", "0.32.0", "0.33.0")
SERVERS = {f"{version} {engine}" for version, engine in product(("0.22.1", "0.26.0", "0.32.0"), ("stock", "ours"))}
LETHAL = 8

ROW = Row(
    phase="commit",
    fault="cut",
    on=("0.32.0 stock",),
    raises="UpdateFailed",
    state="torn",
    serves="paused",
    next="push",
)
FOUND = Found(raises="UpdateFailed", states=("torn",), serves=("paused",), next="push")


def test_every_phase_is_struck_on_every_wire_form_and_both_engines():
    reference = cells()
    assert len(reference) >= 150
    assert {cell.row.phase for cell in reference} == set(PHASES)
    places = {cell.place for cell in reference if cell.workers == 1}
    assert places == {f"{version} {engine}" for version, engine in product(DIALECTS, ("stock", "ours"))}


def test_ten_cells_are_quick():
    assert len(cells(quick=True)) == 10


def test_the_same_fourteen_faults_strike_every_real_server_and_few_are_lethal():
    real = real_cells()
    assert Counter(cell.place for cell in real) == dict.fromkeys(SERVERS, 14)
    assert sum("lost" in cell.row.states for cell in real) <= LETHAL
    places = [cell.place for cell in real]
    assert places == sorted(places, key=places.index), "all cells of a server come together"


@pytest.mark.parametrize("name", ["cell", "real"])
def test_no_cell_is_there_twice(name):
    pairs = [(row.phase, row.fault, place) for row in rows(name) for place in row.on]
    assert [pair for pair, count in Counter(pairs).items() if count > 1] == []


@pytest.mark.parametrize(("name", "part"), [("cell", "reference"), ("real", "real")])
def test_the_document_shows_every_row_of_a_run_in_which_all_was_as_expected(name, part):
    shown, count = between(DOCS.read_text(encoding="utf-8"), part), sum(len(row.on) for row in rows(name))
    lines = [f"| {row.fault} | " for row in rows(name)]
    assert [line for line in lines if line not in shown] == []
    assert f"`faults: {count} tried, {count} as expected, 0 torn resumed, 0 over deadline, " in shown


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ()),
        ({"raises": ""}, ("raises: nothing instead of UpdateFailed",)),
        ({"states": ("whole",)}, ("state: whole instead of torn",)),
        ({"serves": ("a mix",)}, ("serves: a mix instead of paused",)),
        ({"next": "failed: no"}, ("next: failed: no instead of push",)),
        ({"over": 0.5}, ("0.5 s over the deadline",)),
    ],
)
def test_a_cell_is_as_expected_only_if_all_of_it_is(changed, said):
    found = Found(**{name: changed.get(name, getattr(FOUND, name)) for name in Found.__struct_fields__})
    assert differences(ROW, found) == said


def test_the_last_line_counts_what_must_not_happen():
    cell = real_cells()[0]
    lost = Found(raises="", states=("lost",), serves=("a mix",), next="push", over=1.0)
    assert summary([(cell, lost)]) == (
        "faults: 1 tried, 0 as expected, 1 torn resumed, 1 over deadline, 1 lost (1 not expected)"
    )


def test_a_slope_is_that_of_the_line_through_the_values():
    assert slope([3.0, 5.0, 7.0]) == pytest.approx(2.0)
    assert slope([4.0, 4.0, 4.0, 4.0]) == pytest.approx(0.0)
