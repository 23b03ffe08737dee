"""The control plane: one vLLM server, four-phase weight transfer over HTTP."""

from __future__ import annotations

from weightwire.deadlines import Deadline
from weightwire.errors import EngineRefused, StateError
from weightwire.http import Http
from weightwire.messages import EngineInfo, EngineKind, TransferPlan
from weightwire.options import Options
from weightwire.vllm.control import SharedCalls, lost
from weightwire.vllm.posts import Post
from weightwire.vllm.probe import weight_version

from weightwire_vllm import wire
from weightwire_vllm.dialect import Dialect, choose
from weightwire_vllm.ours import OursOver

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


class VllmControl(SharedCalls[Dialect]):
    """See :class:`weightwire.planes.ControlPlane`."""

    control_plane = "vllm"

    def __init__(self, http: Http, version: str) -> None:
        """Call nothing yet; until the probe has said otherwise, the server counts as stock."""
        super().__init__(http, version, choose(version))

    def probe(self, deadline: Deadline) -> EngineInfo:
        """Ask the server everything."""
        info = super().probe(deadline)
        stock = choose(self._version)
        self._encoders = OursOver(stock) if info.kind is EngineKind.OURS else stock
        return info

    def begin(self, plan: TransferPlan, deadline: Deadline) -> None:
        """POST start.

        A client that died between start and its first update leaves the update open, and no route shows that: start
        says so. What it left is closed as any half-done update is, and start is tried once more.
        """
        del plan
        try:
            self._tell(self._encoders.start(), deadline)
        except EngineRefused as error:
            if ALREADY_OPEN not in error.server_text:
                raise
            self.flush(deadline)
            self._tell(self._encoders.start(), deadline)

    def finish(self, plan: TransferPlan, deadline: Deadline) -> None:
        """POST finish, with the version where the server keeps one."""
        self._tell(self._encoders.finish(plan.version), deadline)
        self._in_step.confirm(deadline)

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
                self._unless(ALREADY_OPEN, self._encoders.start(), deadline)
                self._tell(self._encoders.finish(None), deadline)
            else:
                self._unless(NEVER_OPENED, self._encoders.finish(None), deadline)
            self._in_step.confirm(deadline)
        except EngineRefused as error:
            raise lost(error) from error

    def close_channel(self, deadline: Deadline) -> None:
        """POST shutdown, from 0.32 on; before, a server can't leave, and keeps the group until the next init."""
        if self._behaviour.shuts_engine_down:
            self._tell(wire.SHUTDOWN, deadline)

    def _unless(self, text: str, post: Post, deadline: Deadline) -> None:
        """Tell, and let a refusal pass that says *text*: it finds done what was to be done."""
        try:
            self._tell(post, deadline)
            self._in_step.confirm(deadline)  # of several workers some may find it done, and their word comes late
        except EngineRefused as error:
            if text not in error.server_text:
                raise
            self._in_step.drain(deadline)
