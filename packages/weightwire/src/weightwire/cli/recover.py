"""``weightwire recover``: torn engines to where a push can mend them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from weightwire import api
from weightwire.cli.commands import command
from weightwire.cli.screen import Screen
from weightwire.messages import EngineInfo
from weightwire.options import Options
from weightwire.states import EngineState


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What ``recover --json`` writes.

    Attributes:
        found: the engines as they were found.
        flushed: the URLs of those that were torn: they are paused, and wait for a full push.
    """

    found: tuple[EngineInfo, ...]
    flushed: tuple[str, ...]


@command
def recover(
    screen: Screen,
    *,
    urls: Annotated[list[str], typer.Argument(metavar="URL", help="The engines' addresses.")],
    options: Options,
) -> None:
    """Bring the torn engines among URL… to where a full push can make them whole. Leaves them paused."""
    found = api.recover(urls, options)
    flushed = tuple(info.url for info in found if info.state is EngineState.TORN)
    screen.show(Recovered(found=found, flushed=flushed), *(Text(line) for line in _lines(found, flushed)))


def _lines(found: Sequence[EngineInfo], flushed: Sequence[str]) -> Iterator[str]:
    for info in found:
        was_torn = info.url in flushed
        yield f"{info.url} was {'torn: flushed, and left paused' if was_torn else 'whole: left as it is'}"
    if flushed:
        yield f"Now push all weights: weightwire push CHECKPOINT {' '.join(flushed)}"
