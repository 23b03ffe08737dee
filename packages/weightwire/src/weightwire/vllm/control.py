"""The part of a control plane that is the same for every release of vLLM."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import EngineRefused, StateError
from weightwire.http import Http
from weightwire.messages import CachePolicy, ChannelRequest, EngineInfo, PauseMode, TransferPlan, Window
from weightwire.versions import release
from weightwire.vllm import posts
from weightwire.vllm.behaviour import behaviour
from weightwire.vllm.client import Client
from weightwire.vllm.identify import version as identify
from weightwire.vllm.in_step import InStep
from weightwire.vllm.posts import Post
from weightwire.vllm.probe import paused, probe


class Encoders(Protocol):
    """The two calls that every wire form has and every engine words in its own way. Pure."""

    @property
    def name(self) -> str:
        """The first release that spoke the wire form, such as ``"0.28"``."""

    def init(self, request: ChannelRequest) -> Post:
        """Tell the workers to join.

        Raises:
            CompatibilityError: the rendezvous is of a kind that the release can't take.
        """

    def update(self, plan: TransferPlan, window: Window) -> Post:
        """Receive one window.

        Raises:
            ManifestError: the window is empty.
        """


E = TypeVar("E", bound=Encoders)


class SharedCalls(Generic[E]):
    """Probes, joins, pauses, updates and resumes. What opens and closes an update is the wire form's own."""

    control_plane: str
    """The registered name of the control plane; set by the class that implements it."""

    def __init__(self, http: Http, version: str, encoders: E) -> None:
        """Call nothing yet.

        Args:
            http: to the server.
            version: what it says it is.
            encoders: for vLLM's own engine: until the probe has said otherwise, the server counts as stock.
        """
        self._client = Client(http)
        self._http = http
        self._version = version
        self._behaviour = behaviour(release(version))
        self._encoders = encoders
        self._in_step = InStep(self._client)

    def probe(self, deadline: Deadline) -> EngineInfo:
        """Ask the server everything; see :mod:`weightwire.vllm.probe`."""
        self._refuse_another(identify(self._http, deadline))
        found = probe(
            self._client, self._version, deadline, control_plane=self.control_plane, dialect=self._encoders.name
        )
        self._in_step.workers = found.workers
        return found.info

    def init_channel(self, request: ChannelRequest, deadline: Deadline) -> Call[None]:
        """POST init; it is answered when every worker has joined."""
        post, meeting = self._encoders.init(request), request.rendezvous
        hint = (
            f"the workers meet the trainer at {meeting.address}:{meeting.port}; if they can't reach that, set the "
            "options `advertise` and `port`"
        )
        return Call(
            lambda: self._tell(post, deadline, hint=hint if meeting.port else ""),
            doing=f"waiting for the workers of {self._client.url} to join",
        )

    def pause(self, mode: PauseMode, cache: CachePolicy, deadline: Deadline) -> None:
        """POST pause."""
        self._client.tell(posts.pause(mode, cache), deadline)

    def update(self, plan: TransferPlan, window: Window, deadline: Deadline) -> Call[None]:
        """POST update; it is answered when every worker has loaded the window."""
        post = self._encoders.update(plan, window)
        return Call(lambda: self._tell(post, deadline), doing=f"waiting for the workers of {self._client.url} to load")

    def resume(self, deadline: Deadline) -> None:
        """POST resume."""
        self._client.tell(posts.RESUME, deadline)

    def is_paused(self, deadline: Deadline) -> bool:
        """Ask the engine itself."""
        return paused(self._client, deadline)

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

    def _refuse_another(self, version: str | None) -> None:
        if version != self._version:
            now = f"vLLM {version}" if version else "something else"
            raise StateError(
                f"{self._client.url} was vLLM {self._version}, and is {now}.",
                hint="open a new session: another release may speak another wire form",
            ).at(engine=self._client.url)


def lost(cause: EngineRefused) -> EngineRefused:
    """The error for a half-done update that can't be closed any more."""
    error = EngineRefused(
        "The half-done update could not be closed; the engine is lost.",
        hint="restart the server, then push all weights",
        server_text=cause.server_text,
        where=cause.where,
    )
    error.status = cause.status
    return error
