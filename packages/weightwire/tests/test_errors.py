import inspect
import pickle

import pytest
from weightwire import errors
from weightwire.errors import EngineRefused, UpdateFailed, WeightwireError, Where

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, WeightwireError)]


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_survives_pickling_with_all_its_parts(cls):
    error = cls("found that", hint="type this", server_text="its words", where=Where("transfer", 3, "http://e"))

    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is cls
    assert (str(copy), copy.where, copy.hint) == (str(error), error.where, "type this")


def test_the_states_of_the_engines_survive_pickling():
    error = UpdateFailed("no")
    error.engine_states = {"http://e": "torn"}

    assert pickle.loads(pickle.dumps(error)).engine_states == {"http://e": "torn"}


def test_the_text_holds_message_place_the_servers_words_and_the_hint():
    error = EngineRefused("It said 500.", hint="restart it", server_text="boom").at(phase="begin", engine="http://e")

    assert str(error).splitlines() == [
        "It said 500. [phase begin, http://e]",
        "  the engine said: boom",
        "  try: restart it",
    ]


def test_the_inner_place_wins_over_the_outer_one():
    error = WeightwireError("x").at(phase="inner").at(phase="outer", rank=2)

    assert error.where == Where("inner", 2, "")


def test_every_class_is_drawn_in_the_tree():
    assert [c.__name__ for c in CLASSES if c.__name__ not in (errors.__doc__ or "")] == []
