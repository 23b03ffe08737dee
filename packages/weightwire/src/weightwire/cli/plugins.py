"""``weightwire plugins``: what is installed, what it registers, and what of it is broken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version

import msgspec
from rich.text import Text

from weightwire import discovery
from weightwire.cli.commands import command
from weightwire.cli.exit_codes import ExitCode
from weightwire.cli.screen import Screen, pairs
from weightwire.discovery import Catalogue, PluginRecord


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """Something a plugin adds: the *kind* of thing, and its *name*."""

    kind: str
    name: str


class InstalledPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """One plugin.

    Attributes:
        distribution: the distribution it comes with.
        version: that distribution's version.
        entry_point: its name and value.
        registers: what it adds.
        error: why it can't be used; empty when it can.
    """

    distribution: str
    version: str
    entry_point: str
    registers: tuple[Registered, ...]
    error: str


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """What ``plugins --json`` writes.

    Attributes:
        weightwire: the version of the core.
        plugins: the plugins, by distribution.
    """

    weightwire: str
    plugins: tuple[InstalledPlugin, ...]


@command
def plugins(screen: Screen) -> int:
    """List the installed plugins, what each registers, and what is broken."""
    catalogue = discovery.plugins()
    found = Installed(
        weightwire=version("weightwire"), plugins=tuple(_plugin(record, catalogue) for record in catalogue.records)
    )
    screen.show(found, Text(f"weightwire {found.weightwire}"), *_blocks(found.plugins))
    return ExitCode.PLUGIN if catalogue.broken else ExitCode.DONE


def _plugin(record: PluginRecord, catalogue: Catalogue) -> InstalledPlugin:
    owners = {} if record.error else catalogue.registry.owners
    return InstalledPlugin(
        distribution=record.distribution,
        version=record.version,
        entry_point=record.entry_point,
        registers=tuple(Registered(kind=k, name=n) for (k, n), owner in owners.items() if owner == record.distribution),
        error=record.error,
    )


def _blocks(found: Sequence[InstalledPlugin]) -> Iterator[Text]:
    for plugin in found:
        yield Text(f"\n{plugin.distribution} {plugin.version} ({plugin.entry_point})", style="bold")
        if plugin.error:
            yield Text(f"broken: {plugin.error}", style="red")
        elif plugin.registers:
            yield pairs((thing.kind, thing.name) for thing in plugin.registers)
        else:
            yield Text("registers nothing")
    if not found:
        yield Text("No plugins. For vLLM: pip install weightwire-vllm 'weightwire-torch[nccl]'")
