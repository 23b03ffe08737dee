import pytest
from weightwire.errors import CompatibilityError
from weightwire.versions import release, within


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0.32.0", (0, 32, 0)),
        ("0.28.0+cpu", (0, 28, 0)),
        ("v1.2", (1, 2)),
        ("0.9.2rc1", (0, 9, 2)),
        ("0.30.dev3", (0, 30)),
    ],
)
def test_the_release_is_the_numbers_at_the_front(text, numbers):
    assert release(text) == numbers


def test_words_are_no_version():
    with pytest.raises(CompatibilityError, match="'nightly' is no version"):
        release("nightly")


@pytest.mark.parametrize(
    ("version", "inside"), [("0.20.2", False), ("0.21.0", True), ("0.33.9", True), ("0.34.0", False)]
)
def test_a_range_holds_its_first_release_and_not_its_last(version, inside):
    assert within(version, since="0.21", before="0.34") is inside
