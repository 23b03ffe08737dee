from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import pytest
from weightwire.errors import ConfigurationError
from weightwire.options import Options
from weightwire.settings import load, validated


def put(directory: Path, *, own: str = "", project: str = "") -> None:
    if own:
        (directory / "weightwire.toml").write_text(own)
    if project:
        (directory / "pyproject.toml").write_text(project)


def refusal(directory: Path, environ: dict[str, str] | None = None, **overrides: object) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        load(overrides, environ=environ or {}, directory=directory)
    return caught.value


def test_nothing_said_means_the_defaults(tmp_path: Path) -> None:
    assert load({}, environ={"PATH": "/bin"}, directory=tmp_path) == Options()


def test_the_nearest_source_wins_key_by_key(tmp_path: Path) -> None:
    put(
        tmp_path,
        project='[tool.weightwire]\ntimeout = 1\nport = 1\nnum_buckets = 1\nexpected = "project"',
        own="timeout = 2\nport = 2\nnum_buckets = 2",
    )
    environ = {"WEIGHTWIRE_TIMEOUT": "3", "WEIGHTWIRE_PORT": "3"}
    chosen = load({"timeout": 4}, environ=environ, directory=tmp_path)
    assert (chosen.timeout, chosen.port, chosen.num_buckets, chosen.expected) == (4.0, 3, 2, "project")


def test_a_named_file_takes_the_place_of_the_one_in_the_directory(tmp_path: Path) -> None:
    put(tmp_path, own="timeout = 2\nport = 2")
    (tmp_path / "other.toml").write_text("timeout = 5")
    chosen = load({}, environ={"WEIGHTWIRE_CONFIG": str(tmp_path / "other.toml")}, directory=tmp_path)
    assert (chosen.timeout, chosen.port) == (5.0, 0)


def test_a_named_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "WEIGHTWIRE_CONFIG" in refusal(tmp_path, {"WEIGHTWIRE_CONFIG": "/nowhere.toml"}).message


def test_reserved_and_empty_variables_set_no_option(tmp_path: Path) -> None:
    environ = {"WEIGHTWIRE_PLUGINS": "a,b", "WEIGHTWIRE_CONFIG": "", "WEIGHTWIRE_PORT": ""}
    assert load({}, environ=environ, directory=tmp_path) == Options()


def test_an_argument_that_is_none_is_not_given(tmp_path: Path) -> None:
    assert load({"port": None, "packed": None}, environ={"WEIGHTWIRE_PORT": "7"}, directory=tmp_path).port == 7


def test_an_argument_may_be_a_path(tmp_path: Path) -> None:
    assert load({"expected": tmp_path}, environ={}, directory=tmp_path).expected == str(tmp_path)


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("timeout", "0.5", 0.5),
        ("tls_verify", "0", False),
        ("tls_verify", "false", False),
        ("allow_untested", "1", True),
        ("allow_untested", "true", True),
        ("packed", "0", False),
        ("packed", "true", True),
        ("bucket_bytes", "1024", 1024),
        ("dtype", "refuse", "refuse"),
        ("advertise", "10.0.0.1", "10.0.0.1"),
        ("headers", '{"Authorization": "Bearer x"}', {"Authorization": "Bearer x"}),
        ("headers", "Authorization: Bearer x:y\n\nX-Tenant:  7 ", {"Authorization": "Bearer x:y", "X-Tenant": "7"}),
    ],
)
def test_variables_are_typed(tmp_path: Path, variable: str, text: str, value: object) -> None:
    chosen = load({}, environ={f"WEIGHTWIRE_{variable.upper()}": text}, directory=tmp_path)
    assert getattr(chosen, variable) == value


def test_every_option_can_be_set_in_toml(tmp_path: Path) -> None:
    put(tmp_path, own='timeout = 9\npacked = true\ndtype = "refuse"\n[headers]\nX = "1"\n')
    expected = Options(timeout=9.0, packed=True, dtype="refuse", headers={"X": "1"})
    assert load({}, environ={}, directory=tmp_path) == expected


@pytest.mark.parametrize("key", [field.name for field in msgspec.structs.fields(Options) if field.name != "headers"])
def test_every_option_has_a_variable(tmp_path: Path, key: str) -> None:
    default = getattr(Options(), key)
    environ = {f"WEIGHTWIRE_{key.upper()}": "null" if default is None else str(default)}
    assert load({}, environ=environ, directory=tmp_path) == Options()


# Unknown keys


def test_an_unknown_variable_is_refused_with_the_closest(tmp_path: Path) -> None:
    error = refusal(tmp_path, {"WEIGHTWIRE_TIMEOTU": "60"})
    assert "the environment variable WEIGHTWIRE_TIMEOTU" in error.message
    assert error.hint == "write WEIGHTWIRE_TIMEOUT"


def test_a_misspelt_reserved_variable_is_recognised(tmp_path: Path) -> None:
    assert refusal(tmp_path, {"WEIGHTWIRE_PLUGIN": "x"}).hint == "write WEIGHTWIRE_PLUGINS"


def test_a_variable_like_no_other_is_refused_with_all(tmp_path: Path) -> None:
    assert "WEIGHTWIRE_TIMEOUT" in refusal(tmp_path, {"WEIGHTWIRE_QQQQQQQQQQQQQQQQQQQQ": "1"}).hint


def test_an_unknown_argument_is_refused_with_the_closest(tmp_path: Path) -> None:
    error = refusal(tmp_path, bucket_size=1)
    assert "the argument bucket_size" in error.message
    assert error.hint == "write bucket_bytes"


@pytest.mark.parametrize(
    ("text", "file", "guess"),
    [("own", "weightwire.toml", "timeout"), ("project", "[tool.weightwire] of", "timeout")],
)
def test_an_unknown_key_in_toml_is_refused_with_its_file(tmp_path: Path, text: str, file: str, guess: str) -> None:
    line = "time-out = 1"
    put(tmp_path, **{text: line if text == "own" else f"[tool.weightwire]\n{line}"})
    error = refusal(tmp_path)
    assert "time-out in " in error.message
    assert file in error.message
    assert str(tmp_path) in error.message
    assert error.hint == f"write {guess}"


# Wrong values


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("timeout", "soon", "a number"),
        ("timeout", "0", "above 0"),
        ("timeout", "-1", "above 0"),
        ("timeout", "nan", "above 0"),
        ("timeout", "inf", "finite"),
        ("port", "70000", "0 to 65535, or -1"),
        ("port", "8000.5", "a whole number"),
        ("bucket_bytes", "16MiB", "a whole number"),
        ("bucket_bytes", "-1", "at least 0"),
        ("num_buckets", "0", "at least 1"),
        ("tls_verify", "maybe", "true or false"),
        ("packed", "maybe", "true or false"),
        ("dtype", "sometimes", "'refuse'"),
        ("dtype", "convert", "'refuse'"),
        ("headers", "Bearer x", "Name: value"),
        ("headers", '{"X": 1', "JSON"),
        ("headers", ": x", "Name: value"),
    ],
)
def test_a_wrong_variable_is_refused_with_what_was_expected(tmp_path: Path, key: str, text: str, expected: str) -> None:
    message = refusal(tmp_path, {f"WEIGHTWIRE_{key.upper()}": text}).message
    assert f"the environment variable WEIGHTWIRE_{key.upper()}" in message
    assert (f"found {text!r}" in message) == (key != "headers")
    assert expected in message


@pytest.mark.parametrize(
    "line", ['timeout = "60"', "tls_verify = 1", "port = 1.5", "headers = [1]", "headers = {X = 1}"]
)
def test_toml_has_types_of_its_own_and_must_keep_to_them(tmp_path: Path, line: str) -> None:
    put(tmp_path, own=line)
    assert (
        f"The value of {line.split(maxsplit=1)[0]} in {tmp_path / 'weightwire.toml'} is wrong"
        in refusal(tmp_path).message
    )


def test_a_wrong_argument_is_refused(tmp_path: Path) -> None:
    assert "The value of the argument port is wrong" in refusal(tmp_path, port="8000").message


@pytest.mark.parametrize("name", ["weightwire.toml", "pyproject.toml"])
def test_a_file_that_is_not_toml_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"timeout = \xff")
    assert str(tmp_path / name) in refusal(tmp_path).message
    (tmp_path / name).write_text("timeout = = 1")
    assert "line 1" in refusal(tmp_path).message


@pytest.mark.parametrize("text", ["[tool]\nweightwire = 1", "tool = 1", "[project]\nname = 'x'"])
def test_only_a_table_of_our_own_counts_in_pyproject(tmp_path: Path, text: str) -> None:
    put(tmp_path, project=text)
    if "weightwire" in text:
        assert "must be a table" in refusal(tmp_path).message
    else:
        assert load({}, environ={}, directory=tmp_path) == Options()


# Headers, and options that were put together by hand


@pytest.mark.parametrize("given", [{"Authorization": "sk-123\n"}, {"sk-123 x": "y"}, {"X": 1}, ["sk-123"]])
def test_headers_that_can_not_be_sent_are_refused_wherever_they_stand_and_not_shown(
    tmp_path: Path, given: object
) -> None:
    refusals = [refusal(tmp_path, headers=given), refusal(tmp_path, {"WEIGHTWIRE_HEADERS": json.dumps(given)})]
    with pytest.raises(ConfigurationError) as caught:
        validated(Options(headers=given))  # type: ignore[arg-type]
    for error in (*refusals, caught.value):
        assert "sk-123" not in str(error)
        assert "headers" in error.message.lower()


@pytest.mark.parametrize("timeout", [1e300, 2_000_001, 0, -1, math.nan, math.inf])
def test_a_time_that_no_wait_can_last_is_refused(tmp_path: Path, timeout: float) -> None:
    assert "above 0, finite, and at most 2000000" in refusal(tmp_path, timeout=timeout).message


@pytest.mark.parametrize("key", [5, None, ("timeout",)])
def test_a_key_that_is_no_text_is_refused(tmp_path: Path, key: object) -> None:
    with pytest.raises(ConfigurationError, match="There is no option"):
        load({key: 1}, environ={}, directory=tmp_path)  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("timeout", 0.0),
        ("timeout", math.nan),
        ("timeout", 1e300),
        ("timeout", "8"),
        ("timeout", None),
        ("num_buckets", 0),
        ("bucket_bytes", -5),
        ("bucket_bytes", "x"),
        ("headers", None),
        ("port", 70000),
        ("port", "x"),
        ("dtype", "nope"),
        ("packed", "no"),
        ("expected", 5),
    ],
)
def test_options_put_together_by_hand_are_held_to_the_same_rules(key: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"{key} in the Options given"):
        validated(Options(**{key: value}))  # type: ignore[arg-type]


def test_options_that_are_fine_stay_as_they_are() -> None:
    options = Options(timeout=8, headers={"X": "1"}, packed=None, port=-1)
    assert validated(options) == options
    assert isinstance(validated(options).timeout, float)


@pytest.mark.parametrize("given", [{"Authorization": "sk-123"}, "sk-123", None])
def test_options_show_no_value_of_a_header(given: object) -> None:
    shown = repr(Options(timeout=8.0, headers=given))  # type: ignore[arg-type]
    assert "sk-123" not in shown
    assert "timeout=8.0, headers=" in shown
    assert not isinstance(given, dict) or "Authorization" in shown
