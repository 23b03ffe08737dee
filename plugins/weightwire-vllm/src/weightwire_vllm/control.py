"""The control plane: one vLLM server, four-phase weight transfer over HTTP."""

from __future__ import annotations

from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import EngineRefused, StateError
from weightwire.http import Http
from weightwire.messages import CachePolicy, ChannelRequest, EngineInfo, EngineKind, PauseMode, TransferPlan, Window
from weightwire.options import Options
from weightwire.versions import release

from weightwire_vllm import wire
from weightwire_vllm.behaviour import behaviour
from weightwire_vllm.client import Client
from weightwire_vllm.dialect import choose
from weightwire_vllm.engine_payloads import OursOver
from weightwire_vllm.identify import version as identify
from weightwire_vllm.in_step import InStep
from weightwire_vllm.probe import paused, probe, weight_version
from weightwire_vllm.wire import Post

ALREADY_OPEN = "already active"
"""In the refusal of a start while an update is open."""

NEVER_OPENED = "must be called before finish_weight_update"
"""In the refusal of a finish without a start, before 0.23."""


def create(http: Http, version: str, options: Options) -> VllmControl:
    """Make the control plane of the vLLM *version* at the other end of *http*.

    Raises:
        CompatibilityError: it is older than 0.21.
    """
    del options  # what is of use here went into *http*
    return VllmControl(http, version)


class VllmControl:
    """See :class:`weightwire.planes.ControlPlane`."""

    def __init__(self, http: Http, version: str) -> None:
        """Call nothing yet; until the probe has said otherwise, the server counts as stock."""
        self._http = http
        self._client = Client(http)
        self._version = version
        self._behaviour = behaviour(release(version))
        self._dialect = choose(version)
        self._in_step = InStep(self._client)

    def probe(self, deadline: Deadline) -> EngineInfo:
        """Ask the server everything; see :mod:`weightwire_vllm.probe`."""
        self._refuse_another(identify(self._http, deadline))
        found = probe(self._client, self._version, deadline)
        stock = choose(self._version)
        self._dialect = OursOver(stock) if found.info.kind is EngineKind.OURS else stock
        self._in_step.workers = found.workers
        return found.info

    def init_channel(self, request: ChannelRequest, deadline: Deadline) -> Call[None]:
        """POST init; it is answered when every worker has joined."""
        meeting = request.rendezvous
        hint = (
            f"the workers meet the trainer at {meeting.address}:{meeting.port}; if they can't reach that, set the "
            "options `advertise` and `port`"
        )
        return Call(
            lambda: self._tell(self._dialect.init(request), deadline, hint=hint if meeting.port else ""),
            doing=f"waiting for the workers of {self._client.url} to join",
        )

    def pause(self, mode: PauseMode, cache: CachePolicy, deadline: Deadline) -> None:
        """POST pause."""
        self._client.tell(wire.pause(mode, cache), deadline)

    def begin(self, plan: TransferPlan, deadline: Deadline) -> None:
        """POST start."""
        del plan
        self._tell(self._dialect.start(), deadline)

    def update(self, plan: TransferPlan, window: Window, deadline: Deadline) -> Call[None]:
        """POST update; it is answered when every worker has loaded the window."""
        post = self._dialect.update(plan, window)
        return Call(lambda: self._tell(post, deadline), doing=f"waiting for the workers of {self._client.url} to load")

    def finish(self, plan: TransferPlan, deadline: Deadline) -> None:
        """POST finish, with the version where the server keeps one."""
        self._tell(self._dialect.finish(plan.version), deadline)
        self._in_step.confirm(deadline)

    def resume(self, deadline: Deadline) -> None:
        """POST resume."""
        self._client.tell(wire.RESUME, deadline)

    def abort_update(self, plan: TransferPlan, deadline: Deadline) -> None:
        """Nothing can be taken back here: bytes go straight into the live weights.

        Raises:
            StateError: always.
        """
        del deadline
        raise StateError(
            f"Round {plan.round_id} can't be taken back: this server receives into the live weights.",
            hint="push again, all weights",
        ).at(engine=self._client.url)

    def mark(self, weight_version: str, deadline: Deadline) -> bool:
        """POST the version, where the server keeps one."""
        if not self._behaviour.keeps_weight_version:
            return False
        self._client.tell(wire.mark(weight_version), deadline)
        return True

    def weight_version(self, deadline: Deadline) -> str | None:
        """GET the version, where the server keeps one."""
        return weight_version(self._client, self._behaviour, deadline)

    def flush(self, deadline: Deadline) -> None:
        """Close whatever is half done.

        Up to 0.22 a failed update leaves the session open, and finish is the flush. From 0.23 on it closes the
        session and leaves the model on meta tensors: start goes on from there, and finish puts everything back.
        What the model then holds can be run, and is wrong: only a full push makes it whole.
        """
        try:
            self._in_step.drain(deadline)
            if self._behaviour.failed_update_closes_it:
                self._unless(ALREADY_OPEN, self._dialect.start(), deadline)
                self._tell(self._dialect.finish(None), deadline)
            else:
                self._unless(NEVER_OPENED, self._dialect.finish(None), deadline)
            self._in_step.confirm(deadline)
        except EngineRefused as error:
            raise _lost(error) from error

    def is_paused(self, deadline: Deadline) -> bool:
        """Ask the engine itself."""
        return paused(self._client, deadline)

    def close_channel(self, deadline: Deadline) -> None:
        """POST shutdown, from 0.32 on; before, a server can't leave, and keeps the group until the next init."""
        if self._behaviour.shuts_engine_down:
            self._tell(wire.SHUTDOWN, deadline)

    def close(self) -> None:
        """Drop the connections."""
        self._client.close()

    def _tell(self, post: Post, deadline: Deadline, *, hint: str = "") -> None:
        """Tell the workers; whatever they refuse is counted."""
        try:
            self._client.tell(post, deadline, hint=hint)
        except EngineRefused as error:
            self._in_step.failed(error)
            raise

    def _unless(self, text: str, post: Post, deadline: Deadline) -> None:
        """Tell, and let a refusal pass that says *text*: it finds done what was to be done."""
        try:
            self._tell(post, deadline)
        except EngineRefused as error:
            if text not in error.server_text:
                raise
            self._in_step.drain(deadline)

    def _refuse_another(self, version: str | None) -> None:
        if version != self._version:
            now = f"vLLM {version}" if version else "something else"
            raise StateError(
                f"{self._client.url} was vLLM {self._version}, and is {now}.",
                hint="open a new session: another release may speak another wire form",
            ).at(engine=self._client.url)


def _lost(cause: EngineRefused) -> EngineRefused:
    error = EngineRefused(
        "The half-done update could not be closed; the engine is lost.",
        hint="restart the server, then push all weights",
        server_text=cause.server_text,
        where=cause.where,
    )
    error.status = cause.status
    return error
