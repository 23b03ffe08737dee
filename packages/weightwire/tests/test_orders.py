import pytest
from weightwire.engine import TORN_MARK, UPDATING_MARK
from weightwire.errors import ConfigurationError
from weightwire.messages import CachePolicy, PauseMode
from weightwire.orders import LONGEST_VERSION, Order


class Whole:
    """A whole number of another library, as numpy has them."""

    def __index__(self) -> int:
        return 7


class Fraction:
    """One of a library whose tensors may be whole numbers, and may not."""

    def __index__(self) -> int:
        raise TypeError


def order(version: object = 1, pause: object = "keep", cache: object = "reset") -> Order:
    return Order.of(version, pause=pause, cache=cache)


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (0, "0"),
        (-1, "-1"),
        (10**30, "1" + "0" * 30),
        (Whole(), "7"),
        ("step-1200", "step-1200"),
        ("a/b?c=d&e#f", "a/b?c=d&e#f"),
        ("step 12", "step 12"),
        ("ü日本", "ü日本"),
        ("weightwired", "weightwired"),
        ("x" * LONGEST_VERSION, "x" * LONGEST_VERSION),
    ],
)
def test_whole_numbers_and_printable_texts_are_versions(version, text):
    assert order(version).version == text


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("", "empty"),
        (" ", "space"),
        ("a ", "space"),
        ("a\nb", "line end"),
        ("a\tb", "control character"),
        ("\x00", "control character"),
        ("\ud800", "half a character"),
        ("x" * (LONGEST_VERSION + 1), "longer than 200"),
        pytest.param(10**5000, "longer than 200", id="huge"),
        (UPDATING_MARK.format(round="x"), "marks of engines"),
        (TORN_MARK.format(round="x"), "marks of engines"),
        (None, "a NoneType"),
        (True, "a bool"),
        (1.5, "a float"),
        (b"a", "a bytes"),
        ([], "a list"),
        (Fraction(), "a Fraction"),
    ],
)
def test_what_no_engine_should_be_told_is_refused_with_what_is_allowed(version, why):
    with pytest.raises(ConfigurationError, match=why) as caught:
        order(version)
    str(caught.value).encode()
    assert "whole number" in caught.value.message


@pytest.mark.parametrize("given", ["x", None, 5, "", [], "KEEP"])
def test_a_choice_that_there_is_not_is_refused_with_those_there_are(given):
    with pytest.raises(ConfigurationError, match="'keep' or 'wait' or 'abort'"):
        order(pause=given)
    with pytest.raises(ConfigurationError, match="'reset' or 'keep'"):
        order(cache=given)


def test_choices_come_as_texts_or_as_members():
    assert order(pause="wait", cache=CachePolicy.KEEP) == Order("1", PauseMode.WAIT, CachePolicy.KEEP)
