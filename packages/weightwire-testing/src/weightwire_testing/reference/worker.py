"""One worker: a model, its reload, its transfer engine, and the flags that vLLM keeps between calls."""

from __future__ import annotations

import msgspec
import torch

from weightwire_testing.reference.release import Release
from weightwire_testing.reference.reload import Reload
from weightwire_testing.reference.transfer import TransferEngine


class Worker:
    """The calls of ``collective_rpc``, by the names vLLM gives them."""

    def __init__(self, reload: Reload, engine: TransferEngine | None, *, release: Release, index: int) -> None:
        """Serve what *reload* holds; *engine* is None where weight transfer is not configured."""
        self.reload = reload
        self.index = index
        self._engine = engine
        self._release = release
        self._active = False
        self._checkpoint_format = True

    def init_weight_transfer_engine(self, init_info: msgspec.Raw) -> None:
        """Join the sender."""
        self._configured().init_transfer(init_info)

    def shutdown_weight_transfer_engine(self) -> None:
        """Leave the sender (from 0.32).

        Raises:
            RuntimeError: in an update.
        """
        if self._active:
            raise RuntimeError("Cannot release a trainer connection during a weight update")
        if self._engine is not None:
            self._engine.shutdown()

    def start_weight_update(self, *, checkpoint_format: bool) -> None:
        """Open an update (from 0.21).

        Raises:
            RuntimeError: one is open.
        """
        engine = self._configured()
        if self._active:
            raise RuntimeError(
                "start_weight_update called while a weight update is already active. Call finish_weight_update first."
            )
        if checkpoint_format and not engine.opens_reload:
            self.reload.begin()
        self._checkpoint_format = checkpoint_format
        self._active = True

    def start_draft_weight_update(self) -> None:
        """Open an update of the draft model (from 0.26), of which there is none."""
        self._configured()
        raise RuntimeError("start_draft_weight_update called but no draft model is configured.")

    @torch.no_grad()
    def update_weights(self, update_info: msgspec.Raw) -> None:
        """Receive and load, in one call of many (from 0.21) or as the whole update (before).

        Raises:
            RuntimeError: no update is open.
        """
        engine = self._configured()
        if not self._active and not self._release.two_call:
            raise RuntimeError("start_weight_update must be called before update_weights.")
        try:
            engine.update(self._mine(update_info), self.reload, checkpoint_format=self._checkpoint_format)
        except BaseException:
            self._active = self._active and not self._release.failed_update_closes
            raise

    @torch.no_grad()
    def finish_weight_update(self) -> None:
        """Close the update (from 0.21).

        Raises:
            RuntimeError: none is open.
        """
        self._configured()
        if not self._active:
            raise RuntimeError(
                "finish_weight_update called without a matching start_weight_update."
                if self._release.since(23)
                else "start_weight_update must be called before finish_weight_update."
            )
        if self._checkpoint_format and self.reload.open:
            self.reload.finish()
        self._active = False

    def check_health(self) -> None:
        """Do nothing; it drains replies that a failure left behind."""

    def _configured(self) -> TransferEngine:
        if self._engine is None:
            raise RuntimeError(
                "Weight transfer not configured. Please set weight_transfer_config to enable weight transfer."
            )
        return self._engine

    def _mine(self, update_info: msgspec.Raw) -> msgspec.Raw:
        """From 0.29 a list holds one payload for each worker."""
        if self._release.since(29) and bytes(update_info).lstrip().startswith(b"["):
            return msgspec.json.decode(update_info, type=list[msgspec.Raw])[self.index]
        return update_info
