"""Where options come from: arguments, then the environment, then TOML, then the defaults.

Key by key, the first of these that has one: the argument; ``WEIGHTWIRE_<KEY>``; ``weightwire.toml`` in the directory
(or the file that ``WEIGHTWIRE_CONFIG`` names); ``[tool.weightwire]`` in the directory's ``pyproject.toml``. A key that
no option has is an error wherever it stands: a misspelt time-out that is ignored is found too late.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, get_args, get_type_hints

import msgspec

from weightwire import headers
from weightwire.errors import ConfigurationError
from weightwire.options import Options
from weightwire.wording import closest

PREFIX = "WEIGHTWIRE_"
CONFIG = "WEIGHTWIRE_CONFIG"
"""Names a TOML file to read instead of ``weightwire.toml`` in the directory."""

RESERVED = frozenset({CONFIG, "WEIGHTWIRE_PLUGINS"})
"""Variables with our prefix that set no option."""

_LAST_PORT = 65535
_LONGEST = 2_000_000
_TYPES: dict[str, object] = get_type_hints(Options)
_WORDS: dict[object, str] = {
    bool: "true or false (1 or 0)",
    bool | None: "true or false (1 or 0)",
    int: "a whole number",
    float: "a number",
    str: "a text",
    dict[str, str]: "a table of texts; in the environment a JSON object, or lines of 'Name: value'",
}


class _Limit(NamedTuple):
    words: str
    fits: Callable[[float], bool]


_LIMITS = {
    "timeout": _Limit(
        f"a number of seconds above 0, finite, and at most {_LONGEST} (three weeks)",
        lambda seconds: 0 < seconds <= _LONGEST,
    ),
    "bucket_bytes": _Limit("at least 0", lambda size: size >= 0),
    "num_buckets": _Limit("at least 1", lambda count: count >= 1),
    "port": _Limit("0 to 65535, or -1 for none", lambda port: -1 <= port <= _LAST_PORT),
}


class _Layer(NamedTuple):
    """The keys of one source.

    Attributes:
        values: by option, as they were found.
        where: how to speak of one of its keys.
        strict: the values have types; texts of the environment have not.
    """

    values: Mapping[str, object]
    where: Callable[[str], str]
    strict: bool = True


def load(overrides: Mapping[str, object], *, environ: Mapping[str, str], directory: Path) -> Options:
    """Put the options together.

    Args:
        overrides: arguments by option name; None means not given. Paths may be given as such.
        environ: the environment. Empty variables count as not set.
        directory: where ``weightwire.toml`` and ``pyproject.toml`` are looked for.

    Returns:
        The options, typed.

    Raises:
        ConfigurationError: a key is unknown or a value wrong, with its source; or a file can't be read.
    """
    arguments = {key: _plain(value) for key, value in overrides.items() if value is not None}
    layers = (
        *_files(environ, directory),
        _Layer(_variables(environ), lambda key: f"the environment variable {_variable(key)}", strict=False),
        _Layer(arguments, lambda key: f"the argument {key}"),
    )
    chosen: dict[str, object] = {}
    for layer in layers:
        chosen |= {key: _typed(layer, key, value) for key, value in layer.values.items()}
    return msgspec.convert(chosen, Options)


def validated(options: Options) -> Options:
    """Check complete options as those from anywhere else are checked: the struct itself takes anything.

    Returns:
        The same options, typed.

    Raises:
        ConfigurationError: a value is wrong.
    """
    layer = _Layer(msgspec.structs.asdict(options), lambda key: f"{key} in the Options given")
    return msgspec.convert({key: _typed(layer, key, value) for key, value in layer.values.items()}, Options)


def _variable(key: str) -> str:
    """The variable that sets the option *key*; an unknown variable stands for itself."""
    return key if key.startswith(PREFIX) else PREFIX + key.upper()


def _plain(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _variables(environ: Mapping[str, str]) -> dict[str, object]:
    ours = {key: text for key, text in environ.items() if key.startswith(PREFIX) and key not in RESERVED and text}
    options = {_variable(key): key for key in _TYPES}
    return {options.get(variable, variable): text for variable, text in ours.items()}


def _files(environ: Mapping[str, str], directory: Path) -> tuple[_Layer, ...]:
    """The TOML layers, the weakest first."""
    project, own = directory / "pyproject.toml", directory / "weightwire.toml"
    if named := environ.get(CONFIG):
        own = Path(named).expanduser()
        if not own.is_file():
            raise ConfigurationError(
                f"The environment variable {CONFIG} names {own}, which is no file.",
                hint=f"unset {CONFIG}, or set it to the path of a TOML file",
            )
    tool = _read(project).get("tool")
    table = tool.get("weightwire", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise ConfigurationError(f"tool.weightwire in {project} must be a table, not {table!r}.")
    return (
        _Layer(table, lambda key: f"{key} in [tool.weightwire] of {project}"),
        _Layer(_read(own), lambda key: f"{key} in {own}"),
    )


def _read(path: Path) -> dict[str, object]:
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} can't be read as TOML: {error}.") from error


def _typed(layer: _Layer, key: str, value: object) -> object:
    """Convert one value to its option's type."""
    if key not in _TYPES:
        raise _unknown(layer.where(str(key)), str(key))
    kind, found = _TYPES[key], value
    if key == "headers" and isinstance(value, str):
        found = _headers(value)
    shown = "something else (not shown, it may hold a secret)" if key == "headers" else repr(value)
    limit = _LIMITS.get(key)
    try:
        typed = msgspec.convert(found, kind, strict=layer.strict)
    except msgspec.ValidationError as error:
        raise _wrong(layer.where(key), shown, _in_words(kind)) from error
    if limit and isinstance(typed, int | float) and not limit.fits(typed):
        raise _wrong(layer.where(key), shown, limit.words)
    if key == "headers" and isinstance(typed, dict):
        headers.check(typed, layer.where(key))
    return typed


def _headers(text: str) -> object:
    """Headers in one variable: a JSON object, or lines of ``Name: value``; other text is left to be refused."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    pairs = [line.partition(":") for line in text.splitlines() if line.strip()]
    if not all(name.strip() and colon for name, colon, _ in pairs):
        return text
    return {name.strip(): value.strip() for name, _, value in pairs}


def _in_words(kind: object) -> str:
    return _WORDS.get(kind) or f"one of {', '.join(map(repr, get_args(kind)))}"


def _wrong(where: str, shown: str, expected: str) -> ConfigurationError:
    return ConfigurationError(f"The value of {where} is wrong: found {shown}, expected {expected}.")


def _unknown(where: str, key: str) -> ConfigurationError:
    known = {*map(_variable, _TYPES), *RESERVED} if key.startswith(PREFIX) else set(_TYPES)
    guess = closest(key, known)
    return ConfigurationError(
        f"There is no option for {where}.",
        hint=f"write {guess}" if guess else f"the options are {', '.join(sorted(known))}",
    )
