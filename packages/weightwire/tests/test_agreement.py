import threading

import pytest
from weightwire.agreement import Agreement, Word
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import UpdateFailed


class Store:
    """A store between threads that stand for ranks."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()

    def rank(self, rank: int, size: int) -> "Rank":
        return Rank(self, rank, size)


class Rank:
    def __init__(self, store: Store, rank: int, size: int) -> None:
        self.store, self.rank, self.size = store, rank, size

    def publish(self, key: str, value: bytes) -> None:
        with self.store.changed:
            assert key not in self.store.values, f"{key} was written twice"
            self.store.values[key] = value
            self.store.changed.notify_all()

    def read(self, key: str, deadline: Deadline) -> bytes:
        with self.store.changed:
            if not self.store.changed.wait_for(lambda: key in self.store.values, deadline.remaining()):
                raise deadline.exceeded(f"waiting for {key}")
            return self.store.values[key]


@pytest.fixture
def pair():
    store = Store()
    return Agreement(store.rank(0, 2), 0), Agreement(store.rank(1, 2), 0)


def test_a_follower_hears_the_senders_word(pair):
    sender, follower = pair
    heard = Call(lambda: follower.hear("go", Deadline.after(5)), doing="hearing")

    sender.say("go", Word(engines={"http://e": "whole"}))

    assert heard.result(Deadline.after(5)).engines == {"http://e": "whole"}


def test_a_follower_raises_what_the_sender_met(pair):
    sender, follower = pair
    sender.say("go", Word(error="It broke.", hint="mend it", engines={"http://e": "torn"}))

    with pytest.raises(UpdateFailed, match="It broke") as caught:
        follower.hear("go", Deadline.after(5))

    assert (caught.value.hint, caught.value.engine_states, caught.value.where.rank) == (
        "mend it",
        {"http://e": "torn"},
        1,
    )


def test_a_silent_sender_is_named_at_the_deadline(pair):
    with pytest.raises(UpdateFailed, match=r"sender \(rank 0\) said nothing about 'go'"):
        pair[1].hear("go", Deadline.after(0.05))


def test_a_rank_that_never_came_is_named_at_the_deadline():
    store = Store()
    sender = Agreement(store.rank(0, 3), 0)
    Agreement(store.rank(1, 3), 0).here("round-1/ready")

    with pytest.raises(UpdateFailed, match="rank 2 did not come to 'round-1/ready'"):
        sender.all_here("round-1/ready", Deadline.after(0.05))


def test_all_ranks_that_came_let_the_sender_go_on(pair):
    sender, follower = pair
    follower.here("round-1/ready")

    sender.all_here("round-1/ready", Deadline.after(5))


def test_a_trainer_of_one_rank_writes_nothing():
    store = Store()
    alone = Agreement(store.rank(0, 1), 0)

    alone.here("x")
    alone.say("x", Word())
    alone.all_here("x", Deadline.after(0))

    assert store.values == {}


def test_two_sessions_do_not_hear_each_other():
    store = Store()
    Agreement(store.rank(0, 2), 0).say("go", Word())

    with pytest.raises(UpdateFailed):
        Agreement(store.rank(1, 2), 1).hear("go", Deadline.after(0.05))
