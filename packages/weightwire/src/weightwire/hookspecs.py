"""The hooks: discovery's one, and the lifecycle of a session.

Discovery (one manager a process): :func:`weightwire_register`.

Lifecycle (one manager a session, with exactly one backend): connect → open_channel → per round pause,
begin_update, transfer, commit_update, verify_update, resume → close_channel; abort_update when a round fails. In a
staged round begin_update and transfer come before pause. Anyone may wrap a phase with ``@hookimpl(wrapper=True)``:
tracing and fault injection are built so. Observers implement :func:`weightwire_state_changed` and
:func:`weightwire_progress`.

Each spec says **When** it is called, **Where** (which ranks, which thread, collectives allowed or not), what an
implementation **Must** do, and what happens **On error**. There is no hook per tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from weightwire.deadlines import Deadline
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
    from weightwire.registry import Registry
    from weightwire.states import EngineState

PROJECT = "weightwire"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class DiscoverySpecs:
    """Called once a process, when plugins are first asked for."""

    @hookspec
    def weightwire_register(self, registry: Registry) -> None:
        """Add this distribution's planes, sources and commands to *registry*, as import strings.

        When: at the first discovery of a process.
        Where: any process, also one without torch.
        Must: import nothing heavy; add names that are the distribution's own.
        On error: the plugin is reported as broken; discovery goes on.
        """


class LifecycleSpecs:
    """Called by a session, in the order of the module's docstring."""

    @hookspec(firstresult=True)
    def weightwire_connect(self, deadline: Deadline) -> Sequence[EngineInfo] | None:
        """Find out what the engines are and how they stand.

        When: once, when a session is made, and again by ``recover()``.
        Where: sender, caller's thread, no collectives.
        Must: change nothing in any engine.
        On error: the session is not made; nothing is lost.
        """

    @hookspec(firstresult=True)
    def weightwire_open_channel(
        self, engines: Sequence[EngineInfo], manifest: Manifest, deadline: Deadline
    ) -> ChannelInfo | None:
        """Put the sender and every worker of every engine into one group.

        When: before the first round, and when the channel was lost.
        Where: every trainer rank, caller's thread; only the sender joins the group. No collectives among ranks.
        Must: leave the engines serving what they serve.
        On error: the channel is torn down on this side; the engines stay whole.
        """

    @hookspec(firstresult=True)
    def weightwire_pause(self, mode: PauseMode, cache: CachePolicy, deadline: Deadline) -> bool | None:
        """Stop generation on every engine.

        When: a direct round: before begin_update. A staged round: before commit_update.
        Where: sender, caller's thread, no collectives.
        Must: return True once all are paused.
        On error: the round fails; engines already paused are resumed if none is torn.
        """

    @hookspec(firstresult=True)
    def weightwire_begin_update(self, plan: TransferPlan, deadline: Deadline) -> bool | None:
        """Open the update on every engine; the point of no return of a direct round.

        When: before the first byte.
        Where: sender, caller's thread, no collectives.
        Must: mark the engines as updating, where they can be marked, before anything else; return True.
        On error: abort_update follows.
        """

    @hookspec(firstresult=True)
    def weightwire_transfer(self, plan: TransferPlan, source: WeightSource, deadline: Deadline) -> TransferStats | None:
        """Move the bytes.

        When: after begin_update.
        Where: every rank, caller's thread; the source's gathers are the only collectives among ranks.
        Must: gather every group exactly once and in order on every rank, also after an error.
        On error: abort_update follows on every rank.
        """

    @hookspec(firstresult=True)
    def weightwire_commit_update(self, plan: TransferPlan, stats: TransferStats, deadline: Deadline) -> bool | None:
        """Make the new weights the engines' own.

        When: after transfer.
        Where: sender, caller's thread, no collectives.
        Must: return True only when every engine is whole and holds ``plan.version``.
        On error: abort_update follows.
        """

    @hookspec(firstresult=True)
    def weightwire_verify_update(self, receipt: Receipt, deadline: Deadline) -> Verification | None:
        """Compare what the engines hold with what was sent, as far as they can tell.

        When: after commit_update, before resume.
        Where: sender, caller's thread, no collectives.
        Must: raise UpdateFailed where something differs. Optional: no implementation, no check.
        On error: the engines stay paused and count as torn.
        """

    @hookspec(firstresult=True)
    def weightwire_resume(self, deadline: Deadline) -> bool | None:
        """Let every engine generate again.

        When: after a round, and after a failed one that left every engine whole.
        Where: sender, caller's thread, no collectives.
        Must: never touch a torn engine; return True.
        On error: the session is broken; the engines hold the new weights and stay paused.
        """

    @hookspec(firstresult=True)
    def weightwire_abort_update(
        self, plan: TransferPlan, error: BaseException, deadline: Deadline
    ) -> dict[str, EngineState] | None:
        """Clean up after a round that failed, and say what is left.

        When: any phase from begin_update to verify_update raised.
        Where: every rank, caller's thread, no collectives.
        Must: leave nothing in flight, mark torn engines where they can be marked, return the state of each by URL;
            an empty dict on ranks other than the sender.
        On error: the engines count as lost.
        """

    @hookspec(firstresult=True)
    def weightwire_recover(self, deadline: Deadline) -> bool | None:
        """Bring paused, torn engines back to where a full push can make them whole.

        When: ``recover()``, or a push that finds an engine torn.
        Where: sender, caller's thread, no collectives.
        Must: pause first; leave the engines paused; return True.
        On error: the engine is lost: it needs a restart.
        """

    @hookspec(firstresult=True)
    def weightwire_close_channel(self, deadline: Deadline) -> bool | None:
        """Leave the group.

        When: ``close()``, and before the channel is opened anew.
        Where: every rank, caller's thread, no collectives.
        Must: be idempotent.
        On error: logged; closing goes on.
        """

    @hookspec
    def weightwire_state_changed(self, change: StateChange) -> None:
        """Be told of a phase that ended or a state that changed.

        When: after every phase and every change.
        Where: every rank, caller's thread.
        Must: be quick; not call the session.
        On error: logged; it stops nobody.
        """

    @hookspec
    def weightwire_progress(self, progress: Progress) -> None:
        """Be told how many bytes were handed to the wire.

        When: during transfer, after each pack, at most about ten times a second, and once at the end.
        Where: sender, caller's thread.
        Must: be quick.
        On error: logged; it stops nobody.
        """
