"""The demo: its sentences, its trainer, what it shows, and that it fails when the engine holds something else."""

from __future__ import annotations

import io
import json
import math

import pytest
import torch
from rich.console import Console
from weightwire.cli.app import run
from weightwire.cli.screen import Screen
from weightwire.errors import UpdateFailed
from weightwire.options import Options
from weightwire_testing.demo import play, showing, text
from weightwire_testing.demo.records import Plan, Round
from weightwire_testing.demo.training import Trainer
from weightwire_testing.model import save_checkpoint
from weightwire_testing.reference.settings import EngineSettings


@pytest.fixture(autouse=True)
def one_thread(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def a_round(**changed: object) -> Round:
    numbers = {"version": 12, "loss": 1.5, "nbytes": 1536, "before": 3.0, "after": 1e-6}
    phases = {"pause": 0.001, "transfer": 0.25}
    words = {"opening": "Practice", "completion_before": " m", "completion_after": " makes perfect."}
    return Round(**{**numbers, "phases": phases, **words, **changed})


# Sentences and tokens


def test_the_sentences_are_plain_sentences_and_none_is_held_back_and_trained_on():
    assert len(text.trained()) >= 36
    assert len(text.held()) == text.HELD
    assert not set(text.trained()) & set(text.held())
    assert all(line.isascii() and line == line.strip() and line.endswith(".") for line in text.sentences())
    assert len(set(text.sentences())) == len(text.sentences())


def test_a_sentence_comes_back_from_its_tokens():
    for sentence in text.sentences():
        begin, *tokens = text.encode(sentence)
        assert begin == text.BEGIN
        assert text.decode([*tokens, 65, 66]) == sentence


def test_what_can_not_be_printed_is_shown_as_a_dot():
    assert text.decode([65, 0, 27, 155, 255, text.BEGIN, 319, 66]) == "A······B"


def test_an_opening_is_the_first_half_of_the_words():
    assert text.half("Practice makes perfect.") == "Practice makes"
    assert text.half("A rolling stone gathers no moss.") == "A rolling stone"


# Training


def test_two_trainers_with_one_seed_do_the_same():
    losses = [[trainer.step() for _ in range(3)] for trainer in (Trainer(text.trained(), steps=3) for _ in range(2))]
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]


def test_the_trainer_scores_every_token_but_the_first():
    trainer = Trainer(text.trained(), steps=1)
    scores = trainer.score(text.encode("No man."))
    assert len(scores) == len("No man.") + 1
    assert all(score < 0 for score in scores)


# Judging


@pytest.mark.parametrize("before", [0.0, 0.1, math.nan])
def test_a_push_that_could_not_be_seen_is_a_failure(before):
    with pytest.raises(UpdateFailed, match=r"more than 0\.1"):
        play.judge(a_round(before=before))


@pytest.mark.parametrize("after", [1e-4, 0.3, math.nan])
def test_an_engine_that_holds_something_else_is_a_failure(after):
    with pytest.raises(UpdateFailed, match="does not hold what was sent"):
        play.judge(a_round(after=after))


def test_a_push_that_arrived_is_none():
    play.judge(a_round())


class Liar(Trainer):
    """Trains one model and speaks for another."""

    def score(self, tokens):
        return [score + 0.01 for score in super().score(tokens)]


def test_the_demo_stops_at_the_first_round_that_does_not_agree(reference_engine, tmp_path):
    trainer = Liar(text.trained(), steps=4)
    engine = reference_engine(EngineSettings(checkpoint=str(save_checkpoint(trainer.model, tmp_path / "first"))))
    shown: list[Round] = []
    with pytest.raises(UpdateFailed, match="After version 2 "):
        play.play(engine.url, trainer, plan=Plan(steps=4, every=2), options=Options(timeout=20), show=shown.append)
    assert [done.version for done in shown] == [2]
    assert shown[0].after == pytest.approx(0.01, abs=1e-3)


# Showing


def test_a_line_holds_all_of_a_round():
    assert showing.line(a_round()) == (
        "version 12: loss 1.500, 1.5 KiB (pause 1.0 ms, transfer 250.0 ms), max |Δ log p| 3.00 -> 1e-06, "
        "'Practice' + ' m' -> ' makes perfect.'"
    )


def test_the_table_fits_into_80_columns():
    phases = dict.fromkeys(("pause", "begin", "transfer", "commit", "verify", "resume"), 0.1234)
    console = Console(file=io.StringIO(), width=80)
    console.print(showing.table([a_round(phases={"preflight": 0.1, **phases})]))
    title, heads, row = console.file.getvalue().splitlines()
    assert heads.split() == ["version", "loss", "bytes", *phases, "before", "after"]
    assert row.split() == ["12", "1.500", "1.5", "KiB", *["123.4"] * 6, "3.00", "1e-06"]
    assert "phases in ms" in title


def test_a_terminal_gets_a_live_table(monkeypatch):
    screen = Screen()
    screen.out = Console(file=io.StringIO(), force_terminal=True, width=80)
    with showing.on(screen) as show:
        show(a_round())
        show(a_round(version=24))
    said = screen.out.file.getvalue()
    assert "\x1b[" in said
    assert "after  version 24: Practice makes perfect." in said


def test_what_is_waited_for_is_a_spinner_on_a_terminal_and_a_line_elsewhere(capsys):
    screen = Screen()
    with showing.waiting(screen) as say:
        say("starting")
    assert capsys.readouterr().err == "starting\n"
    screen.err = Console(file=io.StringIO(), force_terminal=True, width=80)
    with showing.waiting(screen) as say:
        say("starting")
    assert "\x1b[" in screen.err.file.getvalue()


def test_json_shows_no_rounds_on_the_way(capsys):
    with showing.on(Screen(json=True)) as show:
        show(a_round())
    assert capsys.readouterr().out == ""


# As it is typed


def test_the_demo_ends_with_an_engine_that_says_what_the_trainer_says(capsys):
    assert run(["demo", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["engine"], found["steps"], len(found["rounds"])) == ("reference", 72, 8)
    assert all(done["before"] > 0.1 and done["after"] < 1e-4 for done in found["rounds"])
    assert found["largest_difference"] == max(done["after"] for done in found["rounds"])
    learnt = [done["opening"] + done["completion_after"] in text.trained() for done in found["rounds"]]
    assert learnt[-3:] == [True] * 3
    assert not learnt[0]


def test_a_pipe_gets_plain_lines_and_the_verdict_last(capsys):
    assert run(["demo", "--steps", "5", "--every", "3"]) == 0
    out, err = capsys.readouterr()
    first, second, count, verdict = out.splitlines()
    assert first.startswith("version 3: loss ")
    assert second.startswith("version 5: loss ")
    assert count.startswith("2 pushes in ")
    assert verdict.startswith("served = trained: max |Δ log p| = ")
    assert all(character.isprintable() for character in "".join((out + err).splitlines()))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "sglang"], "There is no engine 'sglang'"),
        (["--engine", "vllm"], "vllm==0."),
        (["--engine", "vllm==0.1.0"], "There are no pins for vLLM '0.1.0'"),
        (["--steps", "0"], "at least 1"),
        (["--every", "0"], "at least 1"),
    ],
)
def test_what_can_not_be_played_is_refused(words, said, capsys):
    assert run(["demo", *words]) == 2
    assert said in capsys.readouterr().err
