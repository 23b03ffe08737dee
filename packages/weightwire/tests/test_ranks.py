"""Sessions of several trainer ranks: a thread for each, a store between them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import weightwire
from weightwire import hookimpl
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import ConfigurationError, EngineRefused, ManifestError, SourceFailed, UpdateFailed
from weightwire.follower import FollowerBackend
from weightwire.messages import Receipt, Window
from weightwire.session import Session
from weightwire.states import EngineState, SessionState
from weightwire.tensors import Manifest, TensorMeta

SECONDS = 10.0


class Trainer:
    """A trainer of two ranks over one engine; *worlds[0]* has the engine, *worlds[1]* the second rank's log."""

    def __init__(self, make_world, store, **options: object) -> None:
        self.worlds = [make_world(**options), make_world(**options)]
        for rank, world in enumerate(self.worlds):
            world.source.ranks = store.rank(rank, 2)
        self.plugins: list[object] = []
        first, second = self.worlds
        self.sessions = [
            first.session(),
            Session(FollowerBackend(), second.source, second.options, plugins=self.plugins),
        ]
        # In a process each, both would be the first; here the second session counts on.
        for session in self.sessions:
            session._part._common.agreement._prefix = "weightwire/0"

    @property
    def server(self):
        return self.worlds[0].server

    def each(self, *works: Callable[[Session], object]) -> list[object]:
        """What each rank's work returns or raises, both at the same time."""
        calls = [
            Call(lambda work=work, session=session: work(session), doing="a rank's work")
            for work, session in zip(works, self.sessions, strict=True)
        ]
        return [_outcome(call) for call in calls]

    def both(self, work: Callable[[Session], object]) -> list[object]:
        return self.each(work, work)

    def open(self) -> Trainer:
        assert self.both(lambda session: session.open()) == [None, None]
        return self

    def gathered(self, rank: int) -> list[str]:
        return [step for step in self.worlds[rank].log if step.startswith("gather")]


def _outcome(call: Call[object]) -> object:
    try:
        return call.result(Deadline.after(SECONDS))
    except Exception as error:  # noqa: BLE001 - what a rank raises is its outcome
        return error


@pytest.fixture
def trainer(make_world, store):
    return Trainer(make_world, store).open()


@pytest.fixture
def in_windows(monkeypatch):
    """Cut the manifest of three groups into three windows, as an engine with small buffers would have it."""
    cut = tuple(Window(i, i, i + 1) for i in range(3))
    monkeypatch.setattr("weightwire.leading.planning.windows", lambda manifest, geometry, infos: cut)


EVERYTHING = ["gather 0", "gather 1", "gather 2"]


def test_both_ranks_gather_every_group_and_know_the_outcome(trainer):
    receipts = trainer.both(lambda session: session.push(1))

    assert all(isinstance(receipt, Receipt) and receipt.committed for receipt in receipts)
    assert [receipt.engines for receipt in receipts] == [("http://e0",), ("http://e0",)]
    assert trainer.gathered(0) == trainer.gathered(1) == EVERYTHING
    assert [session.state for session in trainer.sessions] == [SessionState.READY] * 2


def test_round_after_round(trainer, in_windows):
    for version in range(3):
        receipts = trainer.both(lambda session, version=version: session.push(version))
        assert [receipt.version for receipt in receipts] == [str(version)] * 2
        assert trainer.server.weights == str(version)


def test_a_session_that_can_not_be_opened_says_why_on_every_rank(make_world, store):
    trainer = Trainer(make_world, store)
    trainer.worlds[0].control.fail["probe"] = EngineRefused("No engine for you.", hint="ask nicely")

    first, second = trainer.both(lambda session: session.open())

    assert isinstance(first, EngineRefused)
    assert isinstance(second, UpdateFailed)
    assert (second.message, second.hint) == ("No engine for you.", "ask nicely")


def test_an_error_of_the_senders_source_that_is_none_of_ours_reaches_the_others(make_world, store, monkeypatch):
    trainer = Trainer(make_world, store)
    monkeypatch.setattr(trainer.worlds[0].source, "manifest", lambda: 1 / 0)

    first, second = trainer.both(lambda session: session.open())

    assert isinstance(first, ZeroDivisionError)
    assert "ZeroDivisionError on rank 0" in str(second)


def test_what_is_refused_before_the_round_is_raised_everywhere(trainer):
    trainer.worlds[0].source.shown = Manifest((), ())

    first, second = trainer.both(lambda session: session.push(1))

    assert isinstance(first, ManifestError)
    assert "nothing to send" in str(second)
    assert trainer.gathered(0) == trainer.gathered(1) == []


def test_ranks_that_hold_different_models_are_refused_before_anything_is_touched(trainer):
    trainer.worlds[1].source.shown = Manifest((TensorMeta("model.norm.weight", "float32", (2,)),), ((0, 1),))

    outcomes = trainer.both(lambda session: session.push(1))

    assert all("rank 1 is about to gather other tensors" in str(error) for error in outcomes)
    assert trainer.server.weights == "initial"
    assert not trainer.server.paused


def test_ranks_that_would_gather_other_things_under_the_same_names_are_refused_before_anything_is_touched(trainer):
    for world, adapter in zip(trainer.worlds, ("a", "b"), strict=True):
        world.source.together = adapter

    outcomes = trainer.both(lambda session: session.push(1))

    assert all("rank 1 is about to gather other tensors" in str(error) for error in outcomes)
    assert (trainer.server.weights, trainer.server.paused) == ("initial", False)
    trainer.worlds[0].source.together = "b"
    assert all(receipt.committed for receipt in trainer.both(lambda session: session.push(2)))


def test_a_rank_whose_model_can_not_be_sent_any_more_is_quoted_before_anything_is_touched(trainer, monkeypatch):
    def changed() -> Manifest:
        raise ManifestError("It is another model.")

    monkeypatch.setattr(trainer.worlds[1].source, "manifest", changed)

    first, second = trainer.both(lambda session: session.push(1))

    assert isinstance(first, UpdateFailed)
    assert isinstance(second, ManifestError)
    assert "rank 1 failed: ManifestError: It is another model." in str(first)
    assert (trainer.server.weights, trainer.server.paused) == ("initial", False)


@pytest.mark.parametrize("group", [0, 1, 2])
def test_another_rank_that_raises_tears_the_engine_and_both_ranks_say_so(trainer, group):
    trainer.worlds[1].source.fail_at = group

    outcomes = trainer.both(lambda session: session.push(1))

    assert all(isinstance(error, UpdateFailed) for error in outcomes)
    assert all("rank 1 failed" in str(error) and "it is gone" in str(error) for error in outcomes)
    assert all(error.engine_states == {"http://e0": EngineState.TORN} for error in outcomes)
    assert isinstance(outcomes[1].__cause__, SourceFailed)
    assert trainer.server.paused
    assert trainer.gathered(0) == trainer.gathered(1) == EVERYTHING


def test_after_another_rank_raised_the_next_push_makes_it_whole(trainer):
    trainer.worlds[1].source.fail_at = 1
    trainer.both(lambda session: session.push(1))
    trainer.worlds[1].source.fail_at = None

    receipts = trainer.both(lambda session: session.push(2))

    assert all(receipt.committed for receipt in receipts)
    assert trainer.server.weights == "2"
    assert not trainer.server.paused


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_raises_in_one_window_stops_all_before_the_next(trainer, in_windows, rank):
    trainer.worlds[rank].source.fail_at = 1

    outcomes = trainer.both(lambda session: session.push(1))

    assert all(isinstance(error, UpdateFailed) for error in outcomes)
    assert trainer.gathered(0) == trainer.gathered(1) == ["gather 0", "gather 1"]
    assert trainer.server.paused


def test_a_rank_that_died_before_the_round_is_named_and_touches_nothing(make_world, store):
    trainer = Trainer(make_world, store, timeout=1.0).open()

    first, _ = trainer.each(lambda session: session.push(1), lambda session: None)

    assert "rank 1 did not come" in str(first)
    assert (trainer.server.weights, trainer.server.paused) == ("initial", False)


def test_a_rank_that_died_in_mid_stream_is_named_and_the_engine_is_torn(make_world, store):
    trainer = Trainer(make_world, store, timeout=2.0).open()
    source = trainer.worlds[1].source

    def die(group: int) -> None:
        source.ranks.publish = lambda key, value: None  # the dead write nothing
        raise SystemExit

    source.gather = die
    first, _ = trainer.each(lambda session: session.push(1), _until_death)

    assert "rank 1 did not come" in str(first)
    assert first.engine_states == {"http://e0": EngineState.TORN}
    assert trainer.server.paused


def _until_death(session: Session) -> None:
    with pytest.raises(SystemExit):
        session.push(1)


def test_a_sender_that_died_is_named_by_the_others(make_world, store):
    trainer = Trainer(make_world, store, timeout=0.5).open()

    _, second = trainer.each(lambda session: None, lambda session: session.push(1))

    assert isinstance(second, UpdateFailed)
    assert "rank 0" in str(second)


def test_an_engine_that_refuses_is_quoted_on_every_rank(trainer):
    trainer.worlds[0].control.fail["update"] = EngineRefused("It said no.", server_text="shape mismatch")

    first, second = trainer.both(lambda session: session.push(1))

    assert first.server_text == "shape mismatch"
    assert "It said no." in str(second)
    assert second.engine_states == {"http://e0": EngineState.TORN}
    assert trainer.gathered(0) == trainer.gathered(1) == EVERYTHING


def test_a_push_that_does_not_wait_is_collected_on_every_rank(trainer):
    early = trainer.both(lambda session: session.push(1, wait=False))
    late = trainer.both(lambda session: session.wait())

    assert [receipt.committed for receipt in (*early, *late)] == [False, False, True, True]


def test_a_commit_that_fails_is_raised_where_it_is_collected(trainer):
    trainer.worlds[0].control.fail["finish"] = EngineRefused("no")
    trainer.both(lambda session: session.push(1, wait=False))

    outcomes = trainer.both(lambda session: session.push(2))

    assert all("phase 'commit'" in str(error) for error in outcomes)


def test_closing_and_recovering_are_the_senders_business(trainer):
    assert trainer.both(lambda session: session.recover()) == [None, None]
    assert trainer.both(lambda session: session.push(1))[1].committed
    assert trainer.both(lambda session: session.close()) == [None, None]
    assert [session.state for session in trainer.sessions] == [SessionState.CLOSED] * 2


class Saboteur:
    """A wrapper that raises before the phase it wraps."""

    @hookimpl(wrapper=True)
    def weightwire_transfer(self):
        raise ValueError("sabotage")
        yield


@pytest.mark.parametrize("rank", [0, 1])
def test_a_hook_that_raises_before_the_gathers_keeps_no_rank_waiting_in_them(make_world, store, rank):
    trainer = Trainer(make_world, store)
    sabotaged = trainer.sessions[rank]._part._common.lifecycle
    sabotaged._register(Saboteur())
    trainer.open()

    outcomes = trainer.both(lambda session: session.push(1))

    assert all("sabotage" in str(error) for error in outcomes)
    assert trainer.gathered(0) == trainer.gathered(1) == EVERYTHING
    assert trainer.server.paused


class Witness:
    """Counts the clean-ups it sees."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @hookimpl(wrapper=True)
    def weightwire_abort_update(self, error):
        self.seen.append(type(error).__name__)
        return (yield)


def test_every_rank_cleans_up(make_world, store):
    trainer = Trainer(make_world, store)
    witnesses = [Witness(), Witness()]
    for session, witness in zip(trainer.sessions, witnesses, strict=True):
        session._part._common.lifecycle._register(witness)
    trainer.open()
    trainer.worlds[1].source.fail_at = 0

    trainer.both(lambda session: session.push(1))

    assert [witness.seen for witness in witnesses] == [["UpdateFailed"], ["SourceFailed"]]


def test_a_session_that_one_rank_has_by_itself_is_not_counted_among_those_of_all(make_world, store) -> None:
    def number(size: int) -> int:
        world = make_world()
        world.source.ranks = store.rank(0, size)
        return int(world.session()._part._common.agreement._prefix.rpartition("/")[2])

    first = number(2)
    number(1)
    assert number(2) == first + 1


def test_a_sender_that_can_not_even_begin_tells_the_others_at_once(make_world, store, monkeypatch):
    # In a process each, both ranks would count this session as the same.
    monkeypatch.setattr("weightwire.agreement._sessions", itertools.repeat(7))

    def connect(rank: int) -> Call[object]:
        source = make_world().source
        source.ranks = store.rank(rank, 2)
        options = {"timeout": 60.0, "control_plane": "none of these"}
        return Call(lambda: weightwire.connect("http://127.0.0.1:9", source, options), doing="connecting")

    sender, follower = [_outcome(call) for call in (connect(0), connect(1))]

    assert isinstance(sender, ConfigurationError)
    assert isinstance(follower, UpdateFailed)
    assert "none of these" in str(follower)
