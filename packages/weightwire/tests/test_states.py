import itertools

import pytest
from weightwire.errors import StateError
from weightwire.states import EngineState, SessionState, advance, worst

ROUND = [SessionState.NEW, SessionState.CONNECTED, SessionState.READY, SessionState.UPDATING, SessionState.READY]


def test_a_round_walks_through_legal_states():
    for current, to in itertools.pairwise(ROUND):
        assert advance(current, to) is to


@pytest.mark.parametrize("to", list(SessionState))
def test_a_closed_session_becomes_nothing(to):
    with pytest.raises(StateError, match="closed"):
        advance(SessionState.CLOSED, to)


def test_two_updates_are_never_open_at_once():
    with pytest.raises(StateError, match="updating can't become updating"):
        advance(SessionState.UPDATING, SessionState.UPDATING)


def test_every_open_state_can_be_closed():
    for state in set(SessionState) - {SessionState.CLOSED}:
        assert advance(state, SessionState.CLOSED) is SessionState.CLOSED


def test_a_set_of_engines_is_as_bad_as_its_worst():
    assert worst([EngineState.WHOLE, EngineState.TORN]) is EngineState.TORN
    assert worst([EngineState.LOST, EngineState.TORN]) is EngineState.LOST
    assert worst([]) is EngineState.WHOLE
