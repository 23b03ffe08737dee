"""``weightwire push``: a checkpoint into live engines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from rich.text import Text

from weightwire import api
from weightwire.cli.commands import command
from weightwire.cli.progress import PushProgress
from weightwire.cli.screen import Screen, pairs
from weightwire.cli.units import seconds, size
from weightwire.errors import ConfigurationError
from weightwire.messages import Receipt
from weightwire.options import Options
from weightwire.orders import Order
from weightwire.session import Session


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """How to push.

    Attributes:
        weight_version: What the engines should call these weights; by default the name of the checkpoint's directory.
        pause: What happens to requests in flight: continued with the new weights (keep), finished first (wait), or
            ended (abort).
        cache: Drop the KV and prefix caches (reset), or keep what older weights computed (keep).
    """

    weight_version: str = ""
    pause: Literal["keep", "wait", "abort"] = "keep"
    cache: Literal["reset", "keep"] = "reset"


class Pushed(msgspec.Struct, frozen=True, kw_only=True):
    """What ``push --json`` writes.

    Attributes:
        checkpoint: the directory that was read.
        receipt: what the push did.
        seconds: all phases together.
        bytes_per_second: bytes over that time.
    """

    checkpoint: str
    receipt: Receipt
    seconds: float
    bytes_per_second: float


@command
def push(
    screen: Screen,
    *,
    checkpoint: Annotated[
        Path,
        typer.Argument(metavar="CHECKPOINT", help="A Hugging Face checkpoint: a directory with safetensors files."),
    ],
    urls: Annotated[list[str], typer.Argument(metavar="URL", help="The engines' addresses.")],
    how: Round,
    options: Options,
) -> None:
    """Load CHECKPOINT into the live engines at URL…, all of them or none."""
    directory = _directory(checkpoint)
    version = how.weight_version or directory.name
    _refuse_unfit(version, how)
    with (
        screen.to_itself(),
        PushProgress(screen.err) as progress,
        api.connect(urls, directory, options, plugins=[progress]) as session,
    ):
        receipt = _push(session, version, how)
    metrics = receipt.metrics()
    pushed = Pushed(
        checkpoint=str(directory),
        receipt=receipt,
        seconds=metrics["weightwire/total_s"],
        bytes_per_second=metrics["weightwire/bytes_per_s"],
    )
    screen.show(pushed, _phases(receipt), Text(_summary(pushed)))


def _refuse_unfit(version: str, how: Round) -> None:
    """Say what the push itself would say, before anything is connected."""
    try:
        Order.of(version, pause=how.pause, cache=how.cache)
    except ConfigurationError as error:
        raise ConfigurationError(error.message, hint="add --weight-version step-1200, say") from error


def _push(session: Session, version: str, how: Round) -> Receipt:
    try:
        return session.push(version, pause=how.pause, cache=how.cache)
    except KeyboardInterrupt as stopped:
        for url, state in session.engine_states.items():
            stopped.add_note(f"{url} is {state}")
        raise


def _directory(checkpoint: Path) -> Path:
    if not checkpoint.is_dir():
        found = "a file" if checkpoint.exists() else "not there"
        raise ConfigurationError(
            f"The checkpoint {str(checkpoint)!r} is {found}; a directory with safetensors files is expected.",
            hint="give the directory that save_pretrained() wrote, or the snapshot in the Hugging Face cache",
        )
    return checkpoint.resolve()


def _phases(receipt: Receipt) -> Text:
    return pairs((phase, seconds(took)) for phase, took in receipt.phases.items())


def _summary(pushed: Pushed) -> str:
    receipt = pushed.receipt
    some = (
        receipt.engines[0] + " now serves" if len(receipt.engines) == 1 else f"{len(receipt.engines)} engines now serve"
    )
    moved = f"{size(receipt.stats.nbytes)} in {seconds(pushed.seconds)}, {size(pushed.bytes_per_second)}/s"
    return f"{some} {receipt.version}: {moved}"
