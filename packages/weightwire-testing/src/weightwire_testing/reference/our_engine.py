"""Our engine's wire (:mod:`weightwire.engine_wire`), direct and staged.

Unlike the stock engine it looks before it receives: a window that names unknown tensors, or other shapes, or another
manifest than the channel was opened for, is refused before the first collective.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
from torch import Tensor
from weightwire.deadlines import Deadline
from weightwire.engine_wire import EngineInit, EngineUpdate
from weightwire.messages import PackGeometry, TensorMeta
from weightwire_torch.broadcasting import Flight
from weightwire_torch.gloo_group import GlooGroup
from weightwire_torch.receiver import receive
from weightwire_torch.ring import Ring
from weightwire_vllm_engine import wire

from weightwire_testing.reference.reload import Reload, commit
from weightwire_testing.reference.staging import Staging
from weightwire_testing.reference.transfer import Place, collective

W = TypeVar("W", EngineInit, EngineUpdate)


class _Flight:
    """A collective under way, that suffers its fault when it is waited for."""

    def __init__(self, flight: Flight, place: Place) -> None:
        self._flight = flight
        self._place = place

    def land(self) -> None:
        collective(self._place, self._flight.land)


class _Channel:
    """An open group, and what it was opened for."""

    def __init__(self, init: EngineInit, place: Place) -> None:
        """Join.

        Raises:
            WeightwireError: the sender or another member did not come, or the connection failed.
        """
        self.init = init
        self.geometry = PackGeometry(packed=init.packed, buffer_bytes=init.buffer_bytes, num_buffers=2)
        timeout = min(init.timeout, place.timeout.total_seconds())
        self.timeout = timeout
        self.group = GlooGroup.connect(
            init.address,
            init.port,
            rank=init.rank_offset + place.index,
            world_size=init.world_size,
            timeout=timeout,
        )
        self.group.join(Deadline.after(timeout))
        self._place = place
        self._ring = Ring.fitting(init.tensors, self.geometry)

    def receive(self, tensors: Sequence[TensorMeta]) -> Iterator[list[tuple[str, Tensor]]]:
        """Take the tensors off the wire, pack by pack; they are views that live until the next."""
        return receive(self, tensors, geometry=self.geometry, ring=self._ring)

    def begin(self, flat: Tensor) -> Flight:
        """Begin to receive the next broadcast."""
        return _Flight(self.group.begin(flat), self._place)


class OurEngine:
    """One worker's receiving end."""

    def __init__(self, place: Place) -> None:
        """Not connected."""
        self.opens_reload = place.release.since(25)
        self._place = place
        self._channel: _Channel | None = None
        self._staging = Staging()

    def init_transfer(self, init_info: msgspec.Raw) -> None:
        """Leave the old group, if any, and join the sender's.

        Raises:
            ValueError: there is a key too many.
            WeightwireError: the payload is wrong, or the group did not come together.
        """
        wire.decode_init(msgspec.json.decode(init_info))  # the refusals of our engine in vLLM, in its words
        init = _decode(init_info, EngineInit, "init_info")
        self.shutdown()
        self._channel = _Channel(init, self._place)

    def update(self, update_info: msgspec.Raw, reload: Reload, *, checkpoint_format: bool) -> None:
        """Receive into the live model, or do a step of a staged round.

        Raises:
            ValueError: the payload is wrong, or names what this model does not have.
            RuntimeError: there is no channel.
            WeightwireError: the stream broke.
        """
        update = _decode(update_info, EngineUpdate, "update_info")
        channel = self._open_channel(update)
        window = channel.init.tensors[update.start : update.stop]
        match update.action:
            case "receive" if checkpoint_format:
                _check(window, reload)
                self._receive(channel, window, reload)
            case "stage":
                _check(window, reload)
                self._staging.stage(update.round_id, lambda: channel.receive(window), timeout=channel.timeout)
            case "commit":
                commit(reload, self._staging.take(update.round_id, channel.timeout))
                self._staging.forget()
            case "abort":
                self._staging.forget()
            case action:
                raise ValueError(f"an update can't {action!r} here")

    def shutdown(self) -> None:
        """Leave the group."""
        self._staging.forget()
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.group.close()

    def _receive(self, channel: _Channel, window: Sequence[TensorMeta], reload: Reload) -> None:
        reload.begin()
        for weights in channel.receive(window):
            reload.load((name, tensor.clone()) for name, tensor in weights)  # the ring's memory is used again
        if self._place.release.two_call:
            reload.finish()

    def _open_channel(self, update: EngineUpdate) -> _Channel:
        if self._channel is None:
            raise RuntimeError("the weightwire engine has no channel; call init_weight_transfer_engine first")
        if update.digest != self._channel.init.digest:
            raise ValueError(
                f"the update is for the manifest {update.digest}, the channel was opened for "
                f"{self._channel.init.digest}"
            )
        return self._channel


def _decode(raw: msgspec.Raw, shape: type[W], what: str) -> W:
    """Read *raw* as *shape*; a key too many is refused, as vLLM's dataclasses do."""
    fields = {field.name for field in msgspec.structs.fields(shape)}
    given = msgspec.json.decode(raw)
    extra = sorted(set(given) - fields) if isinstance(given, dict) else []
    if extra:
        raise ValueError(f"Invalid {what} for WeightwireEngine: unexpected keyword argument '{extra[0]}'")
    try:
        return msgspec.json.decode(raw, type=shape)
    except msgspec.ValidationError as error:
        raise ValueError(f"Invalid {what} for WeightwireEngine: {error}") from error


def _check(window: Sequence[TensorMeta], reload: Reload) -> None:
    known = reload.shapes()
    for meta in window:
        if meta.name not in known:
            raise ValueError(f"this model has no tensor {meta.name!r}")
        if meta.shape != known[meta.name]:
            raise ValueError(f"{meta.name!r} has shape {list(known[meta.name])} here, not {list(meta.shape)}")
