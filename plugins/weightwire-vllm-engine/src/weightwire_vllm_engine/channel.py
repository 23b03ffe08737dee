"""One worker's end of the channel: what arrives is fed to a loader, or lands in the model by a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import torch
from weightwire.engine_wire import EngineInit
from weightwire.errors import ManifestError
from weightwire.messages import PackGeometry
from weightwire_torch.framing import Pack, packs
from weightwire_torch.nccl_plane import OpenTransport
from weightwire_torch.receiver import arrivals, receive
from weightwire_torch.ring import Region, Ring

from weightwire_vllm_engine import joining, wire
from weightwire_vllm_engine.landing import Landing
from weightwire_vllm_engine.plan import Plan

NUM_BUFFERS = 2
"""Packs received at once: one arrives while the other is loaded. The framing does not depend on it."""

Batch = list[tuple[str, torch.Tensor]]
Load = Callable[[Batch], object]
"""The model's loader: takes names and tensors."""

Seen = Callable[[int, Sequence[torch.Tensor]], None]
"""Told what was loaded, and the index in the manifest of the first of it."""


class Channel:
    """An open channel. The sender is rank 0 of its group."""

    def __init__(self, init: EngineInit, member: joining.Member, ring: Ring) -> None:
        """Own a member that has joined.

        Args:
            init: what the trainer said of the channel.
            member: of the sender's group.
            ring: for the manifest's packs, where the member receives.
        """
        self.init = init
        self._member = member
        self._ring = ring
        self._geometry = _geometry(init)
        self._routes: dict[tuple[int, int], _Route] = {}

    @classmethod
    def join(cls, init: EngineInit, rank: int, *, transport: OpenTransport | None = None) -> Self:
        """Enter the sender's group, together with all other workers; see :func:`weightwire_vllm_engine.joining.join`.

        Args:
            init: what the trainer said of the channel.
            rank: this worker's place in the group, 1 or more.
            transport: makes what NCCL's bytes travel through; the usual one unless a test gives another.
        """
        rings: list[Ring] = []

        def reserve(device: torch.device) -> None:
            rings.append(Ring.fitting(init.tensors, _geometry(init), device=device))

        member = joining.join(init, rank, reserve, transport=transport)
        return cls(init, member, rings[0])

    def receive(self, update: wire.Update, load: Load, seen: Seen | None = None) -> None:
        """Receive one window, and load it as it arrives.

        A loader that raises is not called again, but the window is received to its end: the sender and the other
        workers are inside the same collectives, and the channel stays in step.

        Args:
            update: which tensors.
            load: called with copies, which it may keep.
            seen: told of the same copies once they were loaded.

        Raises:
            StateError, ManifestError: the update does not fit the channel; nothing was received.
            ManifestError: the loader raised; says at which tensors.
            ChannelError, DeadlineExceeded: the sender is gone; the channel is closed.
        """
        wire.check_window(self.init, update)
        failure: ManifestError | None = None
        tensors, first = self.init.tensors[update.start : update.stop], update.start
        try:
            for batch in receive(self._member, tensors, geometry=self._geometry, ring=self._ring):
                # Copies: vLLM's layer-wise reload keeps what it is given until the layer is complete, and the next
                # packs are received into the same memory meanwhile.
                kept = [(name, tensor.clone()) for name, tensor in batch]
                failure = failure or _loaded(kept, load)
                if seen is not None and failure is None:
                    seen(first, [tensor for _, tensor in kept])
                first += len(batch)
        except BaseException:
            self._member.abort()
            raise
        if failure is not None:
            raise failure

    def land(self, update: wire.Update, plan: Plan) -> None:
        """Receive one window, each pack straight into the model's own memory.

        Args:
            update: which tensors.
            plan: where they go; the same for as long as the channel is open.

        Raises:
            StateError, ManifestError: the update does not fit the channel; nothing was received.
            ChannelError, DeadlineExceeded: the sender is gone; the channel is closed.
        """
        wire.check_window(self.init, update)
        window = (update.start, update.stop)
        route = self._routes.get(window)
        if route is None or route.plan is not plan:
            route = self._routes[window] = self._route(update, plan)
        try:
            for index in arrivals(self._member, self._ring, route.regions):
                route.landing(index, self._ring).land()
        except BaseException:
            self._member.abort()
            raise

    def abort(self) -> None:
        """Leave the group at once. Idempotent."""
        self._member.abort()

    def close(self) -> None:
        """Leave the group. Idempotent."""
        self._member.close()

    def _route(self, update: wire.Update, plan: Plan) -> _Route:
        cut = packs(self.init.tensors[update.start : update.stop], self._geometry)
        return _Route(plan, update.start, cut, self._ring.lay_out(cut))


class _Route:
    """How one window lands: the same, round after round."""

    def __init__(self, plan: Plan, first: int, cut: Sequence[Pack], regions: Sequence[Region]) -> None:
        self.plan = plan
        self.regions = regions
        self._first = first
        self._cut = cut
        self._landings: dict[int, Landing] = {}

    def landing(self, index: int, ring: Ring) -> Landing:
        """The landing of pack *index*, which has arrived."""
        made = self._landings.get(index)
        if made is None:
            made = Landing(self._cut[index], ring.at(self.regions[index]), plan=self.plan, first=self._first)
            if made.lasts:
                self._landings[index] = made
        return made


def _geometry(init: EngineInit) -> PackGeometry:
    return PackGeometry(packed=init.packed, buffer_bytes=init.buffer_bytes, num_buffers=NUM_BUFFERS)


def _loaded(batch: Batch, load: Load) -> ManifestError | None:
    """Load a batch; return what went wrong."""
    try:
        load(batch)
    except Exception as error:  # noqa: BLE001 - raised when the window is over
        names = " to ".join(dict.fromkeys(repr(name) for name, _ in (batch[0], batch[-1])))
        failure = ManifestError(
            f"The model's loader failed at {names}: {type(error).__name__}: {error}",
            hint="the names and shapes must be those of the checkpoint that the server was started from",
        )
        failure.__cause__ = error
        return failure
    return None
