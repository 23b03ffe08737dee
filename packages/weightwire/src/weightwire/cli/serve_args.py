"""``weightwire serve-args``: how to start a server so that it takes weights."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, cast

import msgspec
import typer
from rich.text import Text

from weightwire import discovery
from weightwire.cli.commands import command
from weightwire.cli.screen import Screen
from weightwire.errors import CompatibilityError, ConfigurationError, PluginError
from weightwire.registry import ControlPlaneEntry, ServeAdvice, load
from weightwire.versions import within

MODEL = "MODEL"
"""What stands for the model in an advice's command."""


class ServeArgs(msgspec.Struct, frozen=True, kw_only=True):
    """What ``serve-args --json`` writes.

    Attributes:
        engine: the product, such as ``vllm``.
        version: its release.
        advice: one set-up each: stock, and with our engine plugin.
    """

    engine: str
    version: str
    advice: tuple[ServeAdvice, ...]


@command
def serve_args(
    screen: Screen,
    *,
    requirement: Annotated[str, typer.Argument(metavar="ENGINE==X", help="The server's release, as in vllm==0.32.0.")],
    model: Annotated[str, typer.Option(help="The model to serve, put into the command line.")] = MODEL,
) -> None:
    """Print the command line and the environment of a server that takes weights, ready to be pasted."""
    engine, _, version = requirement.partition("==")
    if not engine or not version:
        raise ConfigurationError(
            f"{requirement!r} names no release; ENGINE==X is expected.", hint="weightwire serve-args vllm==0.32.0"
        )
    advice = tuple(_with_model(one, model) for one in _advice(_entry(engine, version), version))
    found = ServeArgs(engine=engine, version=version, advice=advice)
    screen.show(found, Text("\n\n".join(_scripts(advice))))


def _entry(engine: str, version: str) -> ControlPlaneEntry:
    planes = discovery.plugins().registry.control_planes.values()
    known = [entry for entry in planes if entry.engine == engine and entry.serve_args]
    if not known:
        raise PluginError(
            f"No installed plugin says how to start {engine!r}.",
            hint="pip install weightwire-vllm" if engine == "vllm" else "weightwire plugins lists what is installed",
        )
    for entry in known:
        if within(version, since=entry.since, before=entry.before):
            return entry
    ranges = ", ".join(f"{entry.name}: {entry.since} up to, not including, {entry.before}" for entry in known)
    raise CompatibilityError(
        f"{engine} {version} is outside the releases that the installed plugins know ({ranges}).",
        hint="name a release in that range, or upgrade the plugin; a newer one can be started as the newest there, and "
        "pushed to at your own risk with --allow-untested (WEIGHTWIRE_ALLOW_UNTESTED=1)",
    )


def _advice(entry: ControlPlaneEntry, version: str) -> Sequence[ServeAdvice]:
    return cast("Callable[[str], Sequence[ServeAdvice]]", load(entry.serve_args))(version)


def _with_model(advice: ServeAdvice, model: str) -> ServeAdvice:
    words = tuple(model if word == MODEL else word for word in advice.command)
    return msgspec.structs.replace(advice, command=words)


def _scripts(advice: Sequence[ServeAdvice]) -> Iterator[str]:
    """Each advice under a heading that says that it is a choice: one server runs one of them."""
    for number, one in enumerate(advice):
        choice = ("Or: " if number else "Either: ") if len(advice) > 1 else ""
        yield "\n".join([f"# {choice}{one.title}", *_script(one)])


def _script(advice: ServeAdvice) -> Iterator[str]:
    """The advice as shell text; what is no command is a comment."""
    yield from (f"# {note}" for note in advice.notes)
    if advice.install:
        yield f"pip install {shlex.join(advice.install)}"
    environment = [f"{name}={shlex.quote(value)}" for name, value in advice.env.items()]
    yield " \\\n  ".join([*environment, shlex.join(advice.command)])
