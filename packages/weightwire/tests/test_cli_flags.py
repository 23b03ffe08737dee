"""Flags made from structs, and the commands they end up in."""

from __future__ import annotations

import inspect
from typing import Literal

import msgspec
import pytest
from weightwire.cli.commands import command
from weightwire.cli.flags import documented, flags_of, given
from weightwire.cli.screen import Screen
from weightwire.options import Options


class Cake(msgspec.Struct, kw_only=True):
    """A cake.

    Attributes:
        layers: how many ``layers``
            there are.
        icing: what is on it.
        vegan: no butter.
        tins: tables of tins.
    """

    layers: int = 2
    icing: Literal["sugar", "none"] = "sugar"
    vegan: bool | None = None
    tins: dict[str, str] = {}


def test_every_option_has_a_flag_of_its_own_with_its_docstring():
    flags = flags_of(Options)
    assert [flag.field for flag in flags] == [field.name for field in msgspec.structs.fields(Options)]
    assert len({flag.name for flag in flags}) == len(flags)
    assert all(flag.help for flag in flags)


def test_a_flag_takes_name_type_default_and_text_from_its_field():
    layers, icing, vegan, tins = flags_of(Cake)
    assert (layers.name, layers.kind, layers.default) == ("--layers", int, "2")
    assert layers.help == "how many layers there are."
    assert (icing.kind, icing.default) == (Literal["sugar", "none"], "sugar")
    assert (vegan.kind, vegan.default) == (bool, "")
    assert (tins.name, tins.kind) == ("--tin", list[str])


def test_a_field_without_a_docstring_can_not_become_a_flag():
    class Bare(msgspec.Struct):
        """Nothing is said."""

        field: int = 1

    assert documented(Bare) == {}
    with pytest.raises(KeyError):
        flags_of(Bare)


def test_what_was_not_given_is_left_to_the_environment_and_the_defaults():
    assert given(Cake, {"layers": None, "icing": None, "vegan": None, "tins": []}) == {}
    assert given(Cake, {"layers": 0, "vegan": False, "other": 1}) == {"layers": 0, "vegan": False}


def test_the_words_of_a_table_become_lines_as_in_a_variable():
    assert given(Cake, {"tins": ["a: 1", "b: 2"]}) == {"tins": "a: 1\nb: 2"}


def test_a_command_spreads_structs_into_flags_and_hides_the_screen():
    @command
    def bake(screen: Screen, *, word: str, cake: Cake) -> None:
        """Bake."""

    shown = inspect.signature(bake).parameters
    assert list(shown) == ["typer_context", "word", "layers", "icing", "vegan", "tins", "json", "traceback"]
    assert bake.__doc__ == "Bake."
