import pickle

import pytest
from weightwire.agreement import Agreement, Report, Steps, Word, bad_news
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import ManifestError, UpdateFailed


def soon() -> Deadline:
    return Deadline.after(5)


def at_once() -> Deadline:
    return Deadline.after(0.05)


@pytest.fixture
def pair(store) -> tuple[Steps, Steps]:
    return tuple(Agreement(store.rank(rank, 2), 0).steps("round-1") for rank in range(2))


def test_a_follower_hears_the_senders_word(pair):
    sender, follower = pair
    heard = Call(lambda: follower.hear(soon()), doing="hearing")

    sender.say(Word(cuts=(3, 7)))

    assert heard.result(soon()).cuts == (3, 7)


def test_a_follower_raises_what_the_sender_met(pair):
    sender, follower = pair
    sender.say(Word(error="It broke.", hint="mend it", engines={"http://e": "torn"}))

    with pytest.raises(UpdateFailed, match="It broke") as caught:
        follower.hear(soon())

    assert (caught.value.hint, caught.value.engine_states, caught.value.where.rank) == (
        "mend it",
        {"http://e": "torn"},
        1,
    )


def test_what_a_follower_raises_can_be_handed_to_another_process(pair):
    sender, follower = pair
    sender.say(Word(error="It broke.", engines={"http://e": "torn"}))
    with pytest.raises(UpdateFailed) as caught:
        follower.hear(soon())

    again = pickle.loads(pickle.dumps(caught.value))

    assert (again.message, again.engine_states) == ("It broke.", {"http://e": "torn"})


def test_a_silent_sender_is_named_at_the_deadline(pair):
    with pytest.raises(UpdateFailed, match=r"sender \(rank 0\) said nothing"):
        pair[1].hear(at_once())


def test_a_rank_that_never_reports_is_named_at_the_deadline(store):
    sender = Agreement(store.rank(0, 3), 0).steps("round-1")
    Agreement(store.rank(1, 3), 0).steps("round-1").report(Report())

    with pytest.raises(UpdateFailed, match="rank 2 did not come to 'weightwire/0/round-1/0/2'") as caught:
        sender.hear_all(at_once())

    assert "log of rank 2" in caught.value.hint


def test_a_rank_that_failed_is_quoted(pair):
    sender, follower = pair
    follower.report(Report(error="RuntimeError: out of memory"))

    with pytest.raises(UpdateFailed, match="rank 1 failed: RuntimeError: out of memory"):
        sender.hear_all(soon())


def test_a_rank_that_would_gather_something_else_is_refused(pair):
    sender, follower = pair
    follower.report(Report(digest="other"))

    with pytest.raises(UpdateFailed, match="rank 1 is about to gather other tensors"):
        sender.hear_all(soon(), digest="mine")


def test_all_ranks_that_reported_let_the_sender_go_on(pair):
    sender, follower = pair
    follower.report(Report(digest="same"))

    sender.hear_all(soon(), digest="same")


def test_boundaries_follow_each_other(pair):
    sender, follower = pair
    for cuts in ((1,), (2,), (3,)):
        follower.report(Report())
        sender.hear_all(soon())
        sender.say(Word(cuts=cuts))
        assert follower.hear(soon()).cuts == cuts


def test_after_bad_news_the_sender_says_no_more(pair, store):
    sender, follower = pair
    sender.say(Word(error="off"))
    written = dict(store.values)

    sender.say(Word(error="off again"))
    sender.say(Word())

    assert store.values == written
    with pytest.raises(UpdateFailed, match="off"):
        follower.hear(soon())


def test_a_trainer_of_one_rank_writes_nothing(store):
    alone = Agreement(store.rank(0, 1), 0).steps("round-1")

    alone.report(Report())
    alone.hear_all(Deadline.after(0))
    alone.say(Word())

    assert store.values == {}


def test_two_sessions_and_two_rounds_do_not_hear_each_other(store):
    Agreement(store.rank(0, 2), 0).steps("round-1").say(Word())

    for session, name in ((1, "round-1"), (0, "round-2")):
        with pytest.raises(UpdateFailed):
            Agreement(store.rank(1, 2), session).steps(name).hear(at_once())


def test_bad_news_keeps_the_words_of_an_error_of_ours():
    assert bad_news(ManifestError("Half a layer.", hint="send all")) == Word(error="Half a layer.", hint="send all")


def test_bad_news_of_any_other_error_names_it_and_its_rank():
    assert bad_news(ZeroDivisionError("by zero")).error == "ZeroDivisionError on rank 0: by zero"


def test_bad_news_of_an_interrupt_are_bad_news():
    assert bad_news(KeyboardInterrupt()).error
