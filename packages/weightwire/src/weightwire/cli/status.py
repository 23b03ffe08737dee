"""``weightwire status``: what engines are, and how they stand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from weightwire import api
from weightwire.addresses import shown
from weightwire.cli.commands import command
from weightwire.cli.exit_codes import ExitCode
from weightwire.cli.failures import Failure, failure
from weightwire.cli.screen import Screen, pairs
from weightwire.deadlines import Deadline
from weightwire.errors import WeightwireError
from weightwire.fanout import everywhere
from weightwire.messages import EngineInfo
from weightwire.options import Options
from weightwire.states import RECOVERED, EngineState


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One engine's row: what it is, or why that is not known.

    Attributes:
        url: its address, as it was given, but for a password.
        info: what it is and how it stands.
        error: why nothing is known of it.
    """

    url: str
    info: EngineInfo | None = None
    error: Failure | None = None


class Status(msgspec.Struct, frozen=True):
    """What ``status --json`` writes."""

    engines: tuple[EngineStatus, ...]


@command
def status(
    screen: Screen,
    *,
    urls: Annotated[list[str], typer.Argument(metavar="URL", help="The engines' addresses.")],
    options: Options,
) -> int:
    """Ask the engines at URL… what they are and how they stand. Changes nothing."""
    rows = everywhere(
        urls,
        lambda url: _ask(url, options),
        doing="asking the engines",
        deadline=Deadline.after(2 * options.timeout),  # each answers, or fails, within one
    )
    screen.show(Status(tuple(rows)), *_blocks(rows))
    return _code(rows)


def _ask(url: str, options: Options) -> EngineStatus:
    try:
        return EngineStatus(url=shown(url), info=api.inspect(url, options))
    except WeightwireError as error:
        return EngineStatus(url=shown(url), error=failure(error.at(engine=shown(url))))


def _code(rows: Sequence[EngineStatus]) -> int:
    """A torn engine comes first: it is the one that must not serve."""
    if any(row.info is not None and row.info.state is not EngineState.WHOLE for row in rows):
        return ExitCode.TORN
    return next((row.error.exit_code for row in rows if row.error is not None), ExitCode.DONE)


def _blocks(rows: Sequence[EngineStatus]) -> Iterator[Text]:
    for index, row in enumerate(rows):
        yield Text("\n" * (index > 0) + row.url, style="bold")
        if row.info is not None:
            yield pairs(_lines(row.info))
        if row.error is not None:
            yield pairs(_error_lines(row.error))


def _lines(info: EngineInfo) -> Iterator[tuple[str, str]]:
    yield "state", _state(info)
    yield "weight version", info.weight_version if info.weight_version is not None else "the engine keeps none"
    yield "engine", f"{info.engine} {info.version}"
    yield "dialect", f"{info.dialect} (control plane {info.control_plane})"
    yield "transfer", f"{info.kind}, backend {info.backend}" + (", staged" if info.staged else "")
    yield "workers", str(info.world_size)
    if info.model:
        yield "model", info.model + (f", {info.dtype}" if info.dtype else "")
    for note in info.notes:
        yield "note", note


def _state(info: EngineInfo) -> str:
    paused = "paused" if info.paused else "serving"
    if info.state is EngineState.WHOLE:
        return f"whole, {paused}"
    if info.weight_version == RECOVERED:
        return f"{info.state}, {paused}: recovered; it must not serve before a full push has reached it"
    return f"{info.state}, {paused}: it must not serve; a full push mends it"


def _error_lines(error: Failure) -> Iterator[tuple[str, str]]:
    yield "error", error.message
    if error.server_text:
        yield "it said", error.server_text
    if error.hint:
        yield "try", error.hint
