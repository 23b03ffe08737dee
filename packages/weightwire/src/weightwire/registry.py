"""What plugins register: names and import strings. Nothing here imports what it names."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeVar

import msgspec

from weightwire.errors import PluginError


class ControlPlaneEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A control plane.

    Attributes:
        name: unique, such as ``"vllm"``.
        engine: the product it speaks to, such as ``"vllm"``.
        since: the first release it speaks to, inclusive.
        before: the first release it does not, exclusive; what lies beyond is refused by default.
        identify: ``module:function``, called as ``(http, deadline)``; returns the engine's version, or None if the
            thing at that address is another product. It must not change anything.
        factory: ``module:callable``, called as ``(http, version, options)``; returns a
            :class:`~weightwire.planes.ControlPlane`.
        serve_args: ``module:function``, called as ``(version)``; returns a tuple of
            :class:`~weightwire.registry.ServeAdvice`, the plainest first. Empty where there is none.
    """

    name: str
    engine: str
    since: str
    before: str
    identify: str
    factory: str
    serve_args: str = ""


class ServeAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """How to start a server so that it takes weights.

    Attributes:
        title: which set-up this is, such as ``"stock"``.
        install: what to install into the server's environment besides the server.
        env: environment variables.
        command: the command line, word by word; ``MODEL`` stands for the model.
        notes: what to know, one sentence each.
    """

    title: str
    install: tuple[str, ...]
    env: dict[str, str]
    command: tuple[str, ...]
    notes: tuple[str, ...] = ()


class DataPlaneEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A data plane.

    Attributes:
        name: unique, such as ``"nccl"``.
        backends: names of server backends it can feed, best first.
        factory: ``module:callable``, called without arguments; returns a :class:`~weightwire.planes.DataPlane`.
        usable: ``module:function``, called without arguments; returns why the plane can't be used here, or "".
        priority: among usable planes for one backend, the highest wins.
        our_engine_on: the kind of device that our engine must run on to receive this way, such as ``"cuda"``; empty
            where it may be any. Not asked of other engines: their backend says it all.
    """

    name: str
    backends: tuple[str, ...]
    factory: str
    usable: str = ""
    priority: int = 0
    our_engine_on: str = ""


class WeightSourceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A weight source.

    Attributes:
        name: unique, such as ``"fsdp2"``.
        claim: ``module:function``, called as ``(model)``; returns how specific its claim is: 0 for none, 10 for a
            plain module, 20 PEFT, 30 sharded tensors, 40 an engine of a framework.
        factory: ``module:callable``, called as ``(model, options)``; returns a
            :class:`~weightwire.planes.WeightSource`.
    """

    name: str
    claim: str
    factory: str


class CommandEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A subcommand of ``weightwire``.

    Attributes:
        name: the word to type.
        command: ``module:function``, a typer command function.
        help: one line for ``weightwire --help``.
    """

    name: str
    command: str
    help: str


E_ = TypeVar("E_", ControlPlaneEntry, DataPlaneEntry, WeightSourceEntry, CommandEntry)


class Registry:
    """Collects entries. Duplicates meet here, and are refused by the names of both distributions."""

    def __init__(self) -> None:
        """Start empty."""
        self.control_planes: dict[str, ControlPlaneEntry] = {}
        self.data_planes: dict[str, DataPlaneEntry] = {}
        self.weight_sources: dict[str, WeightSourceEntry] = {}
        self.commands: dict[str, CommandEntry] = {}
        self.owners: dict[tuple[str, str], str] = {}
        self.registering = ""
        self._remove: dict[str, Callable[[str], object]] = {
            "control plane": self.control_planes.pop,
            "data plane": self.data_planes.pop,
            "weight source": self.weight_sources.pop,
            "command": self.commands.pop,
        }

    def add_control_plane(self, entry: ControlPlaneEntry) -> None:
        """Add a control plane."""
        self._add(self.control_planes, entry, "control plane")

    def add_data_plane(self, entry: DataPlaneEntry) -> None:
        """Add a data plane."""
        self._add(self.data_planes, entry, "data plane")

    def add_weight_source(self, entry: WeightSourceEntry) -> None:
        """Add a weight source."""
        self._add(self.weight_sources, entry, "weight source")

    def add_command(self, entry: CommandEntry) -> None:
        """Add a subcommand."""
        self._add(self.commands, entry, "command")

    def owner(self, kind: str, name: str) -> str:
        """The distribution that registered the entry, such as ``owner("data plane", "nccl")``."""
        return self.owners.get((kind, name), "")

    def forget(self, owner: str) -> None:
        """Take back everything that the distribution *owner* registered."""
        for kind, name in [key for key, distribution in self.owners.items() if distribution == owner]:
            self._remove[kind](name)
            del self.owners[kind, name]

    def _add(self, table: dict[str, E_], entry: E_, kind: str) -> None:
        if entry.name in table:
            first = self.owner(kind, entry.name)
            raise PluginError(
                f"Two distributions register the {kind} {entry.name!r}: {first} and {self.registering}.",
                hint=f"pip uninstall one of {first} and {self.registering}",
            )
        table[entry.name] = entry
        self.owners[kind, entry.name] = self.registering


def load(reference: str) -> object:
    """Import what an import string (``module:attribute``) names.

    Raises:
        PluginError: it can't be imported; the cause is chained.
    """
    module, _, attribute = reference.partition(":")
    try:
        found: object = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise PluginError(
            f"{reference!r} can't be imported: {error}.",
            hint="reinstall the distribution that registers it; `weightwire plugins` says which",
        ) from error
    return found
