"""What makes a typer command of a plain function. Plugins that register a command use it too.

A command's parameters may be annotated with :class:`~weightwire.cli.screen.Screen` (it is handed the one of this
run), with :class:`~weightwire.options.Options` (every option becomes a flag; the function gets them completed from the
environment and ``weightwire.toml``) and with any other msgspec struct (each field becomes a flag). The rest is typer's.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, TypeGuard, cast

import msgspec
import typer

from weightwire import settings
from weightwire.cli.flags import given, parameters
from weightwire.cli.screen import Screen
from weightwire.options import Options

CONTEXT = "typer_context"
JSON_HELP = "Write one JSON object to stdout, and nothing else."
TRACEBACK_HELP = "Show where an error was raised, not only what it says."

Function = Callable[..., int | None]


def command(function: Function) -> Function:
    """Make a typer command of *function*, which returns the exit code (None: 0).

    Adds ``--json`` and ``--traceback``, which the screen already knows of.
    """
    signature = inspect.signature(function, eval_str=True)
    kinds = {name: parameter.annotation for name, parameter in signature.parameters.items()}

    @functools.wraps(function)
    def wrapper(**words: object) -> int:
        context = cast("typer.Context", words.pop(CONTEXT))
        filled = {name: _fill(name, kind, context, words) for name, kind in kinds.items()}
        return function(**filled) or 0

    wrapper.__signature__ = _typers(signature)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {name: p.annotation for name, p in wrapper.__signature__.parameters.items()}  # type: ignore[attr-defined]
    return wrapper


def _fill(name: str, kind: object, context: typer.Context, words: Mapping[str, object]) -> object:
    if kind is Screen:
        return context.obj
    if kind is Options:
        return settings.load(given(Options, words), environ=os.environ, directory=Path.cwd())
    if _is_struct(kind):
        return kind(**given(kind, words))
    return words[name]


def _typers(signature: inspect.Signature) -> inspect.Signature:
    """The signature typer is shown: structs spread out, the screen left out, our own flags added."""
    shown = [inspect.Parameter(CONTEXT, inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for parameter in signature.parameters.values():
        kind = parameter.annotation
        if _is_struct(kind):
            shown += parameters(kind)
        elif kind is not Screen:
            shown.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    return signature.replace(parameters=[*shown, _switch("json", JSON_HELP), _switch("traceback", TRACEBACK_HELP)])


def _switch(name: str, text: str) -> inspect.Parameter:
    annotation = Annotated[bool, typer.Option(f"--{name}", help=text)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)


def _is_struct(kind: object) -> TypeGuard[type[msgspec.Struct]]:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
