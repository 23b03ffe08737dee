"""What a plugin implements: control planes, data planes, weight sources and rank groups.

Opening a channel and transferring both need a control call *and* a collective in flight together, so the long calls
of a control plane return a :class:`~weightwire.calls.Call` at once, and a data plane is given a :data:`Watch` that
tells it when that call has already failed.

Who calls what, in order::

    sender      control.probe
    sender      data.prepare → control.init_channel (Call) ‖ data.join
    every round
      sender    control.mark, control.pause, control.begin
      sender    per window: control.update (Call) ‖ data.send, which calls source.gather
      others    source.gather, group by group
      sender    control.finish, control.resume
    sender      data.close, control.close_channel

All of them are called from one thread at a time, the caller's of ``push()``; a data plane may have threads of its
own. An implementation that can't meet a deadline raises ``DeadlineExceeded``; it never blocks past it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.messages import (
    CachePolicy,
    ChannelRequest,
    ChannelSpec,
    EngineInfo,
    Manifest,
    PauseMode,
    Progress,
    Rendezvous,
    TransferPlan,
    TransferStats,
    Window,
)

Watch = Callable[[], BaseException | None]
"""Ask whether something that runs beside a collective has failed; None while all is well. Never blocks."""

ProgressSink = Callable[[Progress], None]
"""Told how many bytes were handed to the wire. Cheap; called from the caller's thread."""


@runtime_checkable
class ControlPlane(Protocol):
    """The calls to one engine. Sender only.

    No implementation may retry init, begin, update or finish: a call that timed out may still be running.
    """

    def probe(self, deadline: Deadline) -> EngineInfo:
        """Find out what the engine is and how it stands. Changes nothing, sends no bad payload.

        Raises:
            EngineUnreachable, GarbledReply: nothing usable answers.
            ConfigurationError: the server is not set up for weight transfer.
            StateError: it sleeps.
        """

    def init_channel(self, request: ChannelRequest, deadline: Deadline) -> Call[None]:
        """Tell the engine's workers to join. Returns at once; the call ends when every worker has joined."""

    def pause(self, mode: PauseMode, cache: CachePolicy, deadline: Deadline) -> None:
        """Stop generation. Both values are said on the wire, whatever the server's defaults are."""

    def begin(self, plan: TransferPlan, deadline: Deadline) -> None:
        """Open an update. From here on the engine may be torn."""

    def update(self, plan: TransferPlan, window: Window, deadline: Deadline) -> Call[None]:
        """Tell the workers to receive one window. Returns at once; the call ends when they have loaded it."""

    def finish(self, plan: TransferPlan, deadline: Deadline) -> None:
        """Close the update and make the new weights the engine's own."""

    def resume(self, deadline: Deadline) -> None:
        """Let the engine generate. Never called on a torn engine."""

    def abort_update(self, plan: TransferPlan, deadline: Deadline) -> None:
        """Give up a round whose bytes never reached the live weights (staged rounds). Raises where it can't."""

    def mark(self, weight_version: str, deadline: Deadline) -> bool:
        """Set the version that the server reports, where it keeps one; False where it keeps none."""

    def weight_version(self, deadline: Deadline) -> str | None:
        """The version the server says it holds; None where it keeps none. Goes through the engine itself."""

    def flush(self, deadline: Deadline) -> None:
        """Bring an engine with a half-done update back to where an update can begin.

        The engine must be paused, and stays torn: only a full push makes it whole.

        Raises:
            ControlError: it could not be flushed; the engine is lost.
        """

    def is_paused(self, deadline: Deadline) -> bool:
        """Ask the engine itself, not its web server: this also tells whether it still answers."""

    def close_channel(self, deadline: Deadline) -> None:
        """Let the workers leave the channel, where the server can. Idempotent."""

    def close(self) -> None:
        """Drop connections. Idempotent, never raises."""


@runtime_checkable
class DataPlane(Protocol):
    """The bytes. Sender only; the sender is rank 0 of the group."""

    def prepare(self, spec: ChannelSpec, deadline: Deadline) -> Rendezvous:
        """Listen, and say where. Never waits for a peer; allocates the bucket ring, so that a round can't fail to.

        Raises:
            ChannelError: the address can't be bound, or the transport can't be loaded.
        """

    def join(self, deadline: Deadline, watch: Watch) -> None:
        """Enter the group, while the init calls are in flight.

        Raises:
            DeadlineExceeded: a worker did not come.
            BaseException: whatever *watch* reports, at once.
        """

    def send(
        self, plan: TransferPlan, window: Window, source: WeightSource, deadline: Deadline, watch: Watch
    ) -> TransferStats:
        """Gather and send one window, on every rank's timetable.

        The groups of the window are gathered on the calling thread, in order, each exactly once, even after an
        error: other ranks are inside the same collectives. Tensors are sent from a thread of the plane's own.

        Raises:
            SourceFailed: the source raised; the stream was completed with filler, and the channel is in step.
            ChannelError: the stream broke; the channel is gone.
            DeadlineExceeded: likewise, by the clock.
            BaseException: whatever *watch* reports; the channel is gone.
        """

    def abort(self) -> None:
        """Leave the group at once, whatever is in flight. Idempotent, never raises, never blocks."""

    def close(self, deadline: Deadline) -> None:
        """Leave the group in order and free the bucket ring. Idempotent."""


@runtime_checkable
class ReportsProgress(Protocol):
    """A data plane that can tell how far it is; the backend sets the sink before a round."""

    progress: ProgressSink | None


@runtime_checkable
class RankGroup(Protocol):
    """The trainer's ranks, and a small store between them. No collectives."""

    @property
    def rank(self) -> int:
        """This process; 0 is the sender."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    def publish(self, key: str, value: bytes) -> None:
        """Write once. Keys are the session's own; a key is never written twice."""

    def read(self, key: str, deadline: Deadline) -> bytes:
        """Wait until *key* is there.

        Raises:
            DeadlineExceeded: nobody wrote it in time.
        """


@runtime_checkable
class WeightSource(Protocol):
    """Where the weights come from. The same object on every rank, gathered in lock-step.

    The index-wise form, instead of an iterator, is what lets a failed round go on gathering: a generator that raised
    is over, and the other ranks would wait in the next collective for ever.
    """

    @property
    def ranks(self) -> RankGroup:
        """The ranks that gather together."""

    def manifest(self) -> Manifest:
        """Names, dtypes and shapes, without a collective; equal on every rank.

        Asked at the beginning of each round, on every rank: what the model is made of may have changed.

        Raises:
            ManifestError: a tensor is sharded, empty, on meta, or named twice.
        """

    def gather(self, group: int) -> Sequence[object]:
        """Return the tensors of ``manifest().groups[group]``, in order. May be a collective.

        Called once a round for each group, in order, on every rank, on the thread and stream of the caller of
        ``push()``. The tensors are complete (no work pending on another stream) and stay as they are until the next
        call of ``gather``, also when storage the source does not own is freed meanwhile. A source that wants to know
        when that is over implements :class:`Releases`.
        """


@runtime_checkable
class LastingTensors(Protocol):
    """A weight source that may say that its tensors stay as they are until the round is over.

    Not only until the next gather, that is: then the next gather need not wait for what is sent in place.
    """

    @property
    def lasting(self) -> bool:
        """Whether they do."""


@runtime_checkable
class GathersTogether(Protocol):
    """A weight source whose ranks could gather different things under the same manifest.

    Two adapters of one model, say, of which one rank was told to use the other: in a collective that would hang, or
    mix them.
    """

    @property
    def together(self) -> str:
        """A digest of what each gather brings together, as of the last manifest. Ranks that differ begin no round."""


@runtime_checkable
class Releases(Protocol):
    """A weight source that holds on to what its last gather returned: the engine of a framework's own memory, say."""

    def release(self) -> None:
        """Let it go; nobody uses it any more. On every rank, after a round's last gather, however the round ended.

        Cheap and idempotent. A collective is allowed only where every rank's gathers went alike.
        """


class SingleRank:
    """The rank group of a trainer that is one process."""

    rank = 0
    size = 1

    def __init__(self) -> None:
        """Start with an empty store."""
        self._store: dict[str, bytes] = {}

    def publish(self, key: str, value: bytes) -> None:
        """Write once."""
        self._store[key] = value

    def read(self, key: str, deadline: Deadline) -> bytes:
        """Return what was written; nobody else could write, so a missing key is late at once."""
        if key not in self._store:
            raise deadline.exceeded(f"waiting for {key!r}, which this only rank never wrote")
        return self._store[key]
