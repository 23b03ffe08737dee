"""Discovery: which plugins are installed, and what they register. Imports nothing heavy.

pluggy's own loader stops at the first plugin that can't be imported, and silently drops the second of two
distributions with the same entry-point name; here each plugin is loaded by itself, and a broken one is reported.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points

import msgspec
import pluggy

from weightwire.errors import PluginError
from weightwire.hookspecs import PROJECT, DiscoverySpecs
from weightwire.registry import Registry

GROUP = "weightwire"
"""The entry-point group."""

LIMIT_VARIABLE = "WEIGHTWIRE_PLUGINS"
"""A comma-separated list of distributions; when it is set, no others are loaded. Empty means none."""


class PluginRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One entry point that was found.

    Attributes:
        distribution: the distribution it comes with.
        version: that distribution's version.
        entry_point: its name and value, as in the distribution's metadata.
        error: why it can't be used; empty when it can.
    """

    distribution: str
    version: str
    entry_point: str
    error: str = ""


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """What is installed: what was found, and what it registered."""

    records: tuple[PluginRecord, ...]
    registry: Registry

    @property
    def broken(self) -> tuple[PluginRecord, ...]:
        """The plugins that can't be used."""
        return tuple(record for record in self.records if record.error)


@cache
def plugins() -> Catalogue:
    """What is installed, found once a process."""
    return discover(entry_points(group=GROUP))


def discover(found: Iterable[EntryPoint], *, strict: bool = False) -> Catalogue:
    """Load each entry point and let it register.

    Args:
        found: the entry points; each must know its distribution.
        strict: raise at the first broken one, instead of reporting it.

    Raises:
        PluginError: *strict*, and a plugin is broken.
    """
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(DiscoverySpecs)
    registry = Registry()
    records = []
    for point in sorted(filter(_wanted, found), key=lambda point: (_distribution(point), point.name)):
        try:
            _register(manager, registry, point)
            error = ""
        except PluginError as broken:
            if strict:
                raise
            error = str(broken)
        records.append(_record(point, error))
    return Catalogue(records=tuple(records), registry=registry)


def _register(manager: pluggy.PluginManager, registry: Registry, point: EntryPoint) -> None:
    owner = registry.registering = _distribution(point)
    try:
        plugin = point.load()
        manager.register(plugin, name=f"{owner}:{point.name}")
        refuse_coroutines(manager, plugin)
        others = [other for other in manager.get_plugins() if other is not plugin]
        manager.subset_hook_caller("weightwire_register", others)(registry=registry)
    except PluginError:
        registry.forget(owner)
        raise
    except Exception as error:
        registry.forget(owner)
        raise PluginError(
            f"The plugin {point.name!r} of {owner} can't be loaded: {type(error).__name__}: {error}",
            hint=f"pip install --upgrade {owner}, or pip uninstall {owner}",
        ) from error


def refuse_coroutines(manager: pluggy.PluginManager, plugin: object) -> None:
    """Refuse ``async def`` hooks: pluggy accepts them, and their bodies would never run.

    Raises:
        PluginError: one of the plugin's hooks is a coroutine function.
    """
    for caller in manager.get_hookcallers(plugin) or []:
        for implementation in caller.get_hookimpls():
            if implementation.plugin is plugin and inspect.iscoroutinefunction(implementation.function):
                raise PluginError(
                    f"{implementation.plugin_name}: {caller.name} is `async def`; hooks are plain functions.",
                    hint="make it a plain function; run the event loop inside it if it needs one",
                )


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "unknown"


def _wanted(point: EntryPoint) -> bool:
    limit = os.environ.get(LIMIT_VARIABLE)
    return limit is None or _distribution(point) in {name.strip() for name in limit.split(",")}


def _record(point: EntryPoint, error: str) -> PluginRecord:
    return PluginRecord(
        distribution=_distribution(point),
        version=point.dist.version if point.dist else "",
        entry_point=f"{point.name} = {point.value}",
        error=error,
    )
