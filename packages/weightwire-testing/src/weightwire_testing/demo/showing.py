"""What is seen of the demo: a live table on a terminal, a line a round everywhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from weightwire.cli.screen import Screen
from weightwire.cli.units import seconds, size

from weightwire_testing.demo.records import Round

TITLE = "phases in ms; before, after: max |Δ log p| between engine and trainer"

Show = Callable[[Round], None]


@contextmanager
def on(screen: Screen) -> Iterator[Show]:
    """What to tell of each round inside a ``with`` block; with ``--json`` nothing is shown."""
    if screen.json:
        yield _nothing
    elif screen.out.is_terminal:
        with Live(console=screen.out, auto_refresh=False, vertical_overflow="visible") as live:
            yield _growing(live)
    else:
        yield lambda done: screen.out.print(Text(line(done)))


@contextmanager
def waiting(screen: Screen) -> Iterator[Callable[[str], None]]:
    """What to tell of what is being waited for: a spinner on a terminal, a line each everywhere else."""
    if screen.err.is_terminal:
        with screen.err.status("") as status:
            yield status.update
    else:
        yield screen.say


def _growing(live: Live) -> Show:
    rounds: list[Round] = []

    def show(done: Round) -> None:
        rounds.append(done)
        live.update(Group(table(rounds), *_completions(done)), refresh=True)

    return show


def _nothing(done: Round) -> None:
    del done


def table(rounds: list[Round]) -> Table:
    """All rounds so far, one a row; it fits into 80 columns, so that it leaves out what no engine feels."""
    found = Table(title=TITLE, title_justify="left", title_style="dim", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    phases = [phase for phase in rounds[0].phases if phase != "preflight"] if rounds else []
    for head in ("version", "loss", "bytes", *phases, "before", "after"):
        found.add_column(head, justify="right", no_wrap=True)
    for done in rounds:
        times = (f"{done.phases.get(phase, 0.0) * 1000:.1f}" for phase in phases)
        numbers = (str(done.version), f"{done.loss:.3f}", size(done.nbytes))
        found.add_row(*numbers, *times, f"{done.before:.2f}", f"{done.after:.0e}")
    return found


def line(done: Round) -> str:
    """One round on one line."""
    phases = ", ".join(f"{phase} {seconds(took)}" for phase, took in done.phases.items())
    return (
        f"version {done.version}: loss {done.loss:.3f}, {size(done.nbytes)} ({phases}), "
        f"max |Δ log p| {done.before:.2f} -> {done.after:.0e}, "
        f"{done.opening!r} + {done.completion_before!r} -> {done.completion_after!r}"
    )


def _completions(done: Round) -> tuple[Text, ...]:
    both = (("before", done.completion_before), ("after ", done.completion_after))
    return tuple(Text(f"{word} version {done.version}: {done.opening}{completion}") for word, completion in both)
