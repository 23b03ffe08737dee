"""Flags made from structs: one a field, with the field's type, default and docstring, so that they can't drift."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

import msgspec
import typer

_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.+(?:\n {5,}.+)*)", re.MULTILINE)


class Flag(msgspec.Struct, frozen=True, kw_only=True):
    """One flag.

    Attributes:
        field: the struct's field, which is also the name of the function's parameter.
        name: what is typed, such as ``--timeout``.
        kind: the type of what is typed, as typer reads it.
        help: the field's docstring.
        default: the field's default, as text; empty for none.
    """

    field: str
    name: str
    kind: Any
    help: str
    default: str


def flags_of(struct: type[msgspec.Struct]) -> tuple[Flag, ...]:
    """One flag for each field of *struct*, in order.

    A table becomes a flag that may be given again and again: ``--header 'Name: value'`` for ``headers``.

    Raises:
        LookupError: a field has no line under ``Attributes:`` in the struct's docstring.
    """
    said = documented(struct)
    return tuple(_flag(field, said[field.name]) for field in msgspec.structs.fields(struct))


def documented(struct: type[msgspec.Struct]) -> dict[str, str]:
    """What the docstring of *struct* says of each field, on one line each, without markup."""
    _, _, attributes = (inspect.getdoc(struct) or "").partition("Attributes:\n")
    return {name: " ".join(text.split()).replace("``", "") for name, text in _ATTRIBUTE.findall(attributes)}


def parameters(struct: type[msgspec.Struct]) -> list[inspect.Parameter]:
    """The flags of *struct* as parameters of a typer command. Their default is None: not given."""
    return [
        inspect.Parameter(
            flag.field,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                flag.kind | None,
                typer.Option(_declaration(flag), help=_help(flag), show_default=False),
            ],
        )
        for flag in flags_of(struct)
    ]


def given(struct: type[msgspec.Struct], values: Mapping[str, object]) -> dict[str, object]:
    """Take from *values* what belongs to *struct* and was given. A table's words become lines, as in a variable."""
    found: dict[str, object] = {}
    for field in msgspec.structs.fields(struct):
        value = values.get(field.name)
        if _is_table(field) and isinstance(value, list | tuple):
            value = "\n".join(map(str, value)) or None
        if value is not None:
            found[field.name] = value
    return found


def flag_name(field: msgspec.structs.FieldInfo) -> str:
    """What is typed for *field*."""
    word = field.name.removesuffix("s") if _is_table(field) else field.name
    return "--" + word.replace("_", "-")


def _flag(field: msgspec.structs.FieldInfo, said: str) -> Flag:
    return Flag(field=field.name, name=flag_name(field), kind=_kind(field), help=said, default=_default(field))


def _kind(field: msgspec.structs.FieldInfo) -> Any:
    if _is_table(field):
        return list[str]
    kinds = [kind for kind in get_args(field.type) if kind is not NoneType]
    return kinds[0] if NoneType in get_args(field.type) else field.type


def _default(field: msgspec.structs.FieldInfo) -> str:
    if isinstance(field.default, bool):
        return "yes" if field.default else "no"
    return "" if _is_table(field) or field.default is None else str(field.default)


def _help(flag: Flag) -> str:
    said = flag.help[:1].upper() + flag.help[1:]
    return f"{said} [default: {flag.default}]" if flag.default else said


def _declaration(flag: Flag) -> str:
    return f"{flag.name}/--no-{flag.name.removeprefix('--')}" if flag.kind is bool else flag.name


def _is_table(field: msgspec.structs.FieldInfo) -> bool:
    return get_origin(field.type) is dict
