"""The typed facade over a session's hooks; no other module calls a hook by name.

One plugin manager a session, with exactly one backend, so that ``firstresult`` can't mean "whichever was installed
last". A hook that nobody answered raises, instead of passing for success, and an observer that raises is logged and
stops nobody: pluggy does neither by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

import pluggy

from weightwire.deadlines import Deadline
from weightwire.discovery import refuse_coroutines
from weightwire.errors import PluginError
from weightwire.hookspecs import PROJECT, LifecycleSpecs
from weightwire.messages import (
    CachePolicy,
    ChannelInfo,
    EngineInfo,
    Manifest,
    PauseMode,
    Progress,
    Receipt,
    StateChange,
    TransferPlan,
    TransferStats,
    Verification,
)
from weightwire.planes import WeightSource
from weightwire.states import EngineState

log = logging.getLogger(__name__)
T = TypeVar("T")


class Lifecycle:
    """One method a hook, with types."""

    def __init__(self, backend: object, plugins: Sequence[object] = ()) -> None:
        """Register the one backend, then the wrappers and observers.

        Raises:
            PluginError: a plugin implements a hook that does not exist, or misspells an argument.
        """
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(LifecycleSpecs)
        for plugin in (backend, *plugins):
            self._register(plugin)

    def _register(self, plugin: object) -> None:
        try:
            self._manager.register(plugin)
            self._manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            raise PluginError(
                f"{plugin!r} does not fit Weightwire's hooks: {error}",
                hint="compare its hooks with weightwire.hookspecs.LifecycleSpecs",
            ) from error
        refuse_coroutines(self._manager, plugin)

    def connect(self, deadline: Deadline) -> tuple[EngineInfo, ...]:
        """See the hook ``weightwire_connect``; the same for the methods below."""
        found = self._manager.hook.weightwire_connect(deadline=deadline)
        return tuple(_answered(cast("Sequence[EngineInfo] | None", found), "weightwire_connect"))

    def open_channel(self, engines: Sequence[EngineInfo], manifest: Manifest, deadline: Deadline) -> ChannelInfo:
        """Open the channel."""
        hook = self._manager.hook.weightwire_open_channel
        found = hook(engines=engines, manifest=manifest, deadline=deadline)
        return _answered(cast("ChannelInfo | None", found), "weightwire_open_channel")

    def pause(self, mode: PauseMode, cache: CachePolicy, deadline: Deadline) -> None:
        """Pause every engine."""
        _answered(self._manager.hook.weightwire_pause(mode=mode, cache=cache, deadline=deadline), "weightwire_pause")

    def begin_update(self, plan: TransferPlan, deadline: Deadline) -> None:
        """Open the update."""
        _answered(self._manager.hook.weightwire_begin_update(plan=plan, deadline=deadline), "weightwire_begin_update")

    def transfer(self, plan: TransferPlan, source: WeightSource, deadline: Deadline) -> TransferStats:
        """Move the bytes."""
        found = self._manager.hook.weightwire_transfer(plan=plan, source=source, deadline=deadline)
        return _answered(cast("TransferStats | None", found), "weightwire_transfer")

    def commit_update(self, plan: TransferPlan, stats: TransferStats, deadline: Deadline) -> None:
        """Make the new weights the engines' own."""
        hook = self._manager.hook.weightwire_commit_update
        _answered(hook(plan=plan, stats=stats, deadline=deadline), "weightwire_commit_update")

    def verify_update(self, receipt: Receipt, deadline: Deadline) -> Verification:
        """Compare, as far as anyone can; an empty result when nobody can."""
        found = self._manager.hook.weightwire_verify_update(receipt=receipt, deadline=deadline)
        return cast("Verification | None", found) or Verification()

    def resume(self, deadline: Deadline) -> None:
        """Let every engine generate again."""
        _answered(self._manager.hook.weightwire_resume(deadline=deadline), "weightwire_resume")

    def abort_update(self, plan: TransferPlan, error: BaseException, deadline: Deadline) -> dict[str, EngineState]:
        """Clean up after a round that failed."""
        found = self._manager.hook.weightwire_abort_update(plan=plan, error=error, deadline=deadline)
        return _answered(cast("dict[str, EngineState] | None", found), "weightwire_abort_update")

    def recover(self, deadline: Deadline) -> None:
        """Bring torn engines back to where a push can mend them."""
        _answered(self._manager.hook.weightwire_recover(deadline=deadline), "weightwire_recover")

    def close_channel(self, deadline: Deadline) -> None:
        """Leave the group."""
        self._manager.hook.weightwire_close_channel(deadline=deadline)

    def state_changed(self, change: StateChange) -> None:
        """Tell every observer; those that raise are logged."""
        self._tell("weightwire_state_changed", {"change": change})

    def progress(self, progress: Progress) -> None:
        """Tell every observer; those that raise are logged."""
        self._tell("weightwire_progress", {"progress": progress})

    def _tell(self, hook: str, arguments: Mapping[str, object]) -> None:
        for observer in getattr(self._manager.hook, hook).get_hookimpls():
            try:
                observer.function(*(arguments[name] for name in observer.argnames))
            except Exception:
                log.exception("The observer %s raised in %s; the round goes on.", observer.plugin_name, hook)


def _answered(value: T | None, hook: str) -> T:
    if value is None:
        raise PluginError(f"No plugin answered the hook {hook}; the session's backend must.")
    return value
