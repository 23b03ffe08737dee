"""The control plane: one vLLM server of the two-call releases.

Begin and finish are this side's own: every update call opens, loads and closes by itself. So nothing on the server says
that a round is under way, and what was sent can't be taken back.
"""

from __future__ import annotations

from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import CompatibilityError, EngineRefused, StateError
from weightwire.http import Http
from weightwire.messages import ChannelRequest, EngineInfo, EngineKind, TransferPlan, Window
from weightwire.options import Options
from weightwire.versions import release
from weightwire.vllm.behaviour import behaviour
from weightwire.vllm.control import SharedCalls, lost

from weightwire_vllm_legacy import unloadable
from weightwire_vllm_legacy.dialect_0_17 import ToOurs, ToStock, TwoCalls


def create(http: Http, version: str, options: Options) -> LegacyControl:
    """Make the control plane of the vLLM *version* at the other end of *http*.

    Raises:
        CompatibilityError: it knows start and finish; also where ``allow_untested`` would let it through, since two
            calls alone would leave such a server without weights.
    """
    del options  # what is of use here went into *http*
    if behaviour(release(version)).opens_updates:
        raise CompatibilityError(
            f"vLLM {version} opens and closes updates by calls of their own; the two-call form ends with 0.20.",
            hint="pip install weightwire-vllm, and leave the option `control_plane` unset",
        ).at(engine=http.url)
    return LegacyControl(http, version)


class LegacyControl(SharedCalls[TwoCalls]):
    """See :class:`weightwire.planes.ControlPlane`."""

    control_plane = "vllm-legacy"

    def __init__(self, http: Http, version: str) -> None:
        """Call nothing yet; until the probe has said otherwise, the server counts as stock."""
        super().__init__(http, version, ToStock())
        self._half_done = False
        self._sent = 0

    def probe(self, deadline: Deadline) -> EngineInfo:
        """Ask the server everything."""
        info = super().probe(deadline)
        self._encoders = ToOurs() if info.kind is EngineKind.OURS else ToStock()
        return info

    def init_channel(self, request: ChannelRequest, deadline: Deadline) -> Call[None]:
        """POST init; it is answered when every worker has joined.

        Raises:
            ManifestError: the release can't load what is to be sent; nothing was called.
        """
        unloadable.refuse(request.manifest, self._version, self._behaviour)
        return super().init_channel(request, deadline)

    def begin(self, plan: TransferPlan, deadline: Deadline) -> None:
        """Call nothing, unless an earlier round has to be flushed first."""
        self._sent = 0
        if self._half_done:
            self._put_layers_back(plan, deadline)

    def update(self, plan: TransferPlan, window: Window, deadline: Deadline) -> Call[None]:
        """POST update; it is answered when every worker has loaded the window."""
        call = super().update(plan, window, deadline)
        self._sent += 1
        return call

    def finish(self, plan: TransferPlan, deadline: Deadline) -> None:
        """Call nothing but what shows an answer that comes late."""
        del plan
        self._in_step.confirm(deadline)

    def abort_update(self, plan: TransferPlan, deadline: Deadline) -> None:
        """Clean only while no update call was made.

        Raises:
            StateError: one was.
        """
        del deadline
        if self._sent:
            raise StateError(
                f"Round {plan.round_id} can't be taken back: vLLM {self._version} loads every update call into the "
                f"live weights, and {self._sent} of {len(plan.windows)} were sent. The engine is torn.",
                hint="push again, all weights; until then the engine must stay paused",
            ).at(engine=self._client.url)

    def mark(self, weight_version: str, deadline: Deadline) -> bool:
        """These releases keep no version."""
        del weight_version, deadline
        return False

    def weight_version(self, deadline: Deadline) -> None:
        """These releases keep no version."""
        del deadline

    def flush(self, deadline: Deadline) -> None:
        """Read old answers out; the next round begins with the update of nothing that puts the layers back.

        It is not sent at once: it takes an open channel, a server that never had one refuses it, and each refusal puts
        the workers' answers out of step.

        Raises:
            EngineRefused: the answers can't be brought in step; the engine is lost.
        """
        try:
            self._in_step.drain(deadline)
        except EngineRefused as error:
            raise lost(error) from error
        self._half_done = True

    def close_channel(self, deadline: Deadline) -> None:
        """These servers can't leave, and keep the group until the next init."""
        del deadline

    def _put_layers_back(self, plan: TransferPlan, deadline: Deadline) -> None:
        try:
            self._tell(self._encoders.flush(plan), deadline)
            self._in_step.confirm(deadline)
        except EngineRefused as error:
            raise lost(error) from error
        self._half_done = False
