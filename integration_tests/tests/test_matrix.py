"""The compatibility matrix: that it holds what it should, how its runs go on, and that the documents are made of it."""

from __future__ import annotations

from pathlib import Path

import matrix
import matrix_documents
import matrix_gpu
import matrix_real
import matrix_trainer_side
import msgspec
import pytest
from extract_contract import CONTRACTS, recorded
from matrix_cells import Cell, Matrix, TrainerSide, load
from matrix_contract import Bench, Failed
from matrix_results import RECORDED, Result, Results, as_expected, summary
from weightwire_testing import environments

REAL = [
    *("0.17.1", "0.18.1", "0.19.1", "0.20.2", "0.21.0", "0.22.1", "0.23.0", "0.24.0"),
    *("0.25.1", "0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0"),
]
PASSED = Result(outcome="pass", day="2026-11-29", seconds=1.0, figures="5 tests", commit="abc")
CELL = Cell(vllm="0.32.0", engine="ours", layout="tp1", plane="gloo", trainer="plain", tier="contract", expect="pass")
REFUSES = msgspec.structs.replace(CELL, setup="lora", expect="refuse", says="--enable-lora", why="adapters")
GPU = [name for names in matrix_gpu.EXPERIMENTS.values() for name in names]
GPU_CELL = msgspec.structs.replace(CELL, engine="stock", plane="nccl", tier="gpu")
OUR_GPU_CELL = msgspec.structs.replace(GPU_CELL, engine="ours")
SIDE = TrainerSide(python="3.11", torch="2.13.0", packages="floor")
SMALL = Matrix((CELL, REFUSES), (SIDE,))


def _real(**wanted):
    cells = [cell for cell in load().cells if cell.tier == "cpu"]
    return {c.vllm for c in cells if all(getattr(c, name) == value for name, value in wanted.items())}


def test_our_engine_is_started_for_real_in_every_minor_release():
    assert _real(engine="ours", layout="tp1", trainer="plain") == set(REAL)


def test_vllms_own_engine_and_several_workers_are_started_for_real_in_each_wire_form():
    assert _real(engine="stock", layout="tp1") == {"0.20.2", "0.22.1", "0.24.0", "0.27.1", "0.30.0", "0.32.0"}
    for layout in ("tp2", "dp2"):
        assert _real(layout=layout) == {"0.20.2", "0.22.1", "0.26.0", "0.32.0"}
    for trainer in ("fsdp2", "deepspeed", "trl"):
        assert _real(trainer=trainer) == {"0.22.1", "0.32.0"}


def test_every_release_has_a_cell_for_each_engine_and_layout_or_a_refusal():
    columns = {(engine, layout) for engine in ("ours", "stock") for layout in ("tp1", "tp2", "dp2")}
    for version in [*REAL, "0.33.0"]:
        plain = [c for c in load().cells if c.vllm == version and c.trainer == "plain" and not c.setup]
        assert {(cell.engine, cell.layout) for cell in plain} == columns, version


def test_every_real_release_is_pinned_and_has_a_contract():
    assert set(REAL) <= set(environments.known())
    assert {*REAL, "0.33.0"} <= set(recorded(CONTRACTS))


def _written(tmp_path: Path, **changes: str) -> Path:
    fields = msgspec.to_builtins(CELL) | changes
    row = ", ".join(f'{name} = "{value}"' for name, value in fields.items() if value)
    path = tmp_path / "matrix.toml"
    path.write_text(f"cells = [{{{row}}}]\ntrainer_sides = []\n")
    return path


def test_a_cell_is_read(tmp_path):
    assert load(_written(tmp_path)).cells == (CELL,)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"expect": "refuse"}, "says how and why"),
        ({"says": "x", "why": "y"}, "says how and why"),
        ({"expect": "refuse", "says": "x", "why": "y", "tier": "cpu"}, "reference engine"),
        ({"plane": "stock-shim"}, "gloo is how our engine"),
        ({"engine": "stock"}, "gloo is how our engine"),
        ({"layout": "tp4"}, "Invalid enum value"),
        ({"colour": "red"}, "unknown field"),
    ],
)
def test_a_cell_that_makes_no_sense_is_refused(tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        load(_written(tmp_path, **changes))


def test_a_cell_that_stands_there_twice_is_refused(tmp_path):
    path = _written(tmp_path)
    text = path.read_text()
    row = text[text.index("{") : text.index("}") + 1]
    path.write_text(text.replace(row, f"{row}, {row}"))
    with pytest.raises(ValueError, match="twice"):
        load(path)


def test_results_outlive_a_run_and_are_a_cell_a_line(tmp_path):
    path = tmp_path / "deep" / "results.json"
    Results(path).put("b", PASSED)
    Results(path).put("a", PASSED)
    assert Results(path).get("b") == PASSED
    assert [line.strip()[:3] for line in path.read_text().splitlines()[1:-1]] == ['"a"', '"b"']


def test_recording_keeps_what_was_not_run_again_and_drops_what_is_gone(tmp_path):
    recorded_before, now = Results(tmp_path / "recorded.json"), Results(tmp_path / "now.json")
    for name in ("kept", "gone"):
        recorded_before.put(name, PASSED)
    now.put("new", PASSED)
    now.put("kept", msgspec.structs.replace(PASSED, outcome="not run"))
    recorded_before.take_over(now, {"kept", "new"})
    found = Results(tmp_path / "recorded.json")
    assert (found.get("kept"), found.get("new"), found.get("gone")) == (PASSED, PASSED, None)


@pytest.mark.parametrize(
    ("outcomes", "line"),
    [
        (("pass", "refuse", "pass"), "matrix: 3 cells, 2 pass, 1 refused as expected, 0 unexpected"),
        (("fail", "refuse", "pass"), "matrix: 3 cells, 1 pass, 1 refused as expected, 1 unexpected"),
        (("pass", "pass", "pass"), "matrix: 3 cells, 2 pass, 0 refused as expected, 1 unexpected"),
        (("pass", "refuse", "not run"), "matrix: 3 cells, 1 pass, 1 refused as expected, 0 unexpected, 1 not run"),
    ],
)
def test_the_last_line_counts(tmp_path, outcomes, line):
    results = Results(tmp_path / "results.json")
    for cell, outcome in zip(SMALL.everything, outcomes, strict=True):
        results.put(cell.id, msgspec.structs.replace(PASSED, outcome=outcome))
    assert summary(SMALL.everything, results) == line


@pytest.fixture
def tried(monkeypatch):
    """Puts work of a test's own into a run; returns the names of the cells that were tried."""
    names = []

    def put(work):
        class Workers:
            def __enter__(self):
                return lambda cell: names.append(cell.id) or work(cell)

            def __exit__(self, *_):
                return None

        monkeypatch.setattr(matrix, "workers", Workers)
        return names

    return put


def test_a_run_goes_on_where_one_stopped(tmp_path, tried, capsys):
    results = Results(tmp_path / "results.json")
    names = tried(lambda cell: lambda: (cell is not CELL, "as it went"))
    assert matrix.run(SMALL, results, [], fresh=False) == 1
    assert len(names) == 3
    assert matrix.run(SMALL, results, [], fresh=False) == 1
    assert names[3:] == [CELL.id]
    tried(lambda _: lambda: (True, "mended"))
    assert matrix.run(SMALL, Results(tmp_path / "results.json"), [], fresh=False) == 0
    assert capsys.readouterr().out.splitlines()[-1] == ("matrix: 3 cells, 2 pass, 1 refused as expected, 0 unexpected")


def test_a_fresh_run_forgets_the_cells_that_it_is_about(tmp_path, tried):
    results = Results(tmp_path / "results.json")
    names = tried(lambda _: lambda: (True, ""))
    matrix.run(SMALL, results, [], fresh=False)
    matrix.run(SMALL, results, ["lora"], fresh=True)
    assert names[3:] == [REFUSES.id]
    assert as_expected(CELL, results.get(CELL.id))


def test_what_cant_be_run_is_not_run_and_what_raises_fails(tmp_path, tried):
    results = Results(tmp_path / "results.json")
    tried(lambda cell: "no Python for it" if cell is SIDE else _raise)
    assert matrix.run(SMALL, results, [], fresh=False) == 1
    assert (results.get(SIDE.id).outcome, results.get(SIDE.id).figures) == ("not run", "no Python for it")
    assert (results.get(CELL.id).outcome, results.get(CELL.id).figures) == ("fail", "ZeroDivisionError: by zero")


def _raise():
    raise ZeroDivisionError("by zero")


def test_words_choose_cells(tried, tmp_path):
    names = tried(lambda _: lambda: (True, ""))
    matrix.run(SMALL, Results(tmp_path / "results.json"), ["0.32.0", "lora"], fresh=False)
    assert names == [REFUSES.id]


@pytest.fixture(scope="module")
def bench():
    """One for all tests here, as one serves a whole run."""
    bench = Bench()
    yield bench
    bench.close()


def test_a_contract_cell_holds_the_facts_and_brings_weights_there_and_back(bench):
    assert "facts hold, there and back" in bench.run(CELL)


def test_a_cell_that_should_refuse_says_what_was_said(bench):
    assert "ConfigurationError: The server runs with --enable-lora" in bench.run(REFUSES)


def test_a_refusal_that_does_not_come_or_comes_in_other_words_fails(bench):
    with pytest.raises(Failed, match="not refused"):
        bench.run(msgspec.structs.replace(REFUSES, setup=""))
    with pytest.raises(Failed, match="in other words"):
        bench.run(msgspec.structs.replace(REFUSES, says="something else"))


def test_what_a_real_cell_needs_is_said_where_it_is_missing():
    assert "pins" in matrix_real.missing(msgspec.structs.replace(CELL, tier="cpu", vllm="0.33.0"))
    assert matrix_real.missing(msgspec.structs.replace(CELL, tier="cpu")) == ""


def test_a_trainers_side_is_asked_for_at_its_floors():
    assert "torch==2.13.0" in matrix_trainer_side.requirements(SIDE)
    assert {"msgspec==0.20", "pluggy==1.5"} <= set(matrix_trainer_side.requirements(SIDE))
    assert any(text.startswith("peft>=") for text in matrix_trainer_side.requirements(SIDE)), "what a suite needs"
    newest = matrix_trainer_side.requirements(TrainerSide(python="3.11", torch="newest", packages="newest"))
    assert "torch" in newest
    assert not any(each.startswith("msgspec") for each in newest)


def test_another_python_that_is_not_there_is_said_to_be_missing(monkeypatch, tmp_path):
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\nexit 1\n")
    uv.chmod(0o755)
    monkeypatch.setenv("UV", str(uv))
    assert "no Python 3.12" in matrix_trainer_side.missing(TrainerSide(python="3.12", torch="2.13.0", packages="floor"))


def test_the_page_shows_what_is_expected_what_came_and_what_was_not_run(tmp_path):
    results = Results(tmp_path / "results.json")
    results.put(CELL.id, PASSED)
    results.put(REFUSES.id, msgspec.structs.replace(PASSED, outcome="pass"))
    page = matrix_documents.page(SMALL, results)
    assert "| 0.32.0 |  |  |  | contract |  |  |" in page
    assert "| 0.32.0 | ours, TP1 | lora | adapters | **passed** |" in page
    assert "| 3.11 | 2.13.0 | floor | not run |" in page


def _gpu_run(path: Path, *rows: tuple[str, str, bool | None]) -> Path:
    file = path / "results.jsonl"
    lines = [{"version": "0.32.0", "experiment": e, "what": w, "ok": ok, "apart": 0.05} for e, w, ok in rows]
    ends = [{"version": "0.32.0", "experiment": "run", "what": f"{e} ended", "ok": True, "seconds": 7.0} for e in GPU]
    file.write_bytes(b"\n".join(msgspec.json.encode(line) for line in (*lines, *ends)))
    return file


@pytest.mark.parametrize(
    ("cell", "rows", "outcome"),
    [
        (GPU_CELL, (("rounds-eager", "it holds B", True), ("rounds-graphs", "a round", None)), "pass"),
        (GPU_CELL, (("rounds-eager", "it holds B", True), ("rounds-graphs", "it holds A", False)), "fail"),
        (OUR_GPU_CELL, (("rounds-ours-eager", "it holds B", True), ("rounds-eager", "it holds A", False)), "pass"),
        (GPU_CELL, (("speed", "it holds B", True),), None),
    ],
    ids=["good", "bad", "ours", "another experiment"],
)
def test_what_a_run_on_gpus_gave_is_taken_over(cell, rows, outcome, tmp_path):
    result = matrix_gpu.taken(_gpu_run(tmp_path, *rows), cell, day="2026-11-29", commit="abc")
    assert (result.outcome if result else None) == outcome


def test_a_run_on_gpus_that_broke_off_or_was_of_another_release_says_nothing(tmp_path):
    path = _gpu_run(tmp_path, ("rounds-eager", "it holds B", True))
    other = msgspec.structs.replace(GPU_CELL, vllm="0.30.0")
    assert matrix_gpu.taken(path, other, day="", commit="") is None
    kept = [line for line in path.read_bytes().splitlines() if b"rounds-graphs ended" not in line]
    path.write_bytes(b"\n".join(kept))
    assert matrix_gpu.taken(path, GPU_CELL, day="", commit="") is None


def test_the_readme_keeps_what_stands_around_its_table():
    before = f"a\n{matrix_documents.BEGIN}\nold\n{matrix_documents.END}\nb\n"
    after = matrix_documents.put_into(before, "new\n")
    assert after == before.replace("old", f"\nnew\n\n{matrix_documents.LEGEND}\n")
    with pytest.raises(ValueError, match="has no"):
        matrix_documents.put_into("a", "new\n")


def test_the_documents_are_what_the_recorded_results_make():
    assert matrix_documents.stale(load(), Results(RECORDED)) == [], "run: python tools/matrix.py documents"


def test_every_recorded_result_is_as_expected():
    results = Results(RECORDED)
    wrong = [
        cell.id for cell in load().everything if results.get(cell.id) and not as_expected(cell, results.get(cell.id))
    ]
    assert wrong == []


@pytest.mark.parametrize("order", [["run", "--fresh", "lora"], ["run", "lora", "--fresh"], ["--fresh", "run", "lora"]])
def test_options_stand_where_one_likes(order, tried, tmp_path, monkeypatch):
    monkeypatch.setattr(matrix, "WORKING", tmp_path / "results.json")
    names = tried(lambda _: lambda: (True, ""))
    assert matrix.main(order) == 0
    assert names
    assert all("lora" in name for name in names)


def test_a_run_that_records_makes_the_documents_even_where_something_is_wrong(tried, tmp_path, monkeypatch):
    for name in ("WORKING", "RECORDED"):
        monkeypatch.setattr(matrix, name, tmp_path / f"{name}.json")
    made = []
    monkeypatch.setattr(matrix_documents, "write", lambda *_: made.append("documents") or [])
    tried(lambda _: lambda: (False, "wrong"))
    assert matrix.main(["run", "--record", "lora"]) == 1
    assert made == ["documents"]
    assert (tmp_path / "RECORDED.json").is_file()


def test_the_command_lists_the_cells(capsys):
    assert matrix.main(["list", "0.33.0", "gpu"]) == 0
    assert "0.33.0-stock-tp1-nccl-plain-gpu" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("trainer", "selected"),
    [("plain", "stock-qwen3-tp1-dp1"), ("fsdp2", "fsdp2-stock-0.32.0"), ("trl", "trl-stock-0.32.0")],
)
def test_a_real_cell_runs_the_tests_of_its_trainer_alone(trainer, selected):
    cell = msgspec.structs.replace(CELL, tier="cpu", vllm="0.32.0", engine="stock", layout="tp1", trainer=trainer)
    assert matrix_real._selection(cell)[-1] == selected
