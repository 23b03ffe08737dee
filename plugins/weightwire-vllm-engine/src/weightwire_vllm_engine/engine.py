"""The engine: one class for every release of vLLM that has weight transfer.

What differs between the releases, and how one class meets all of it:

* The constructor takes ``(config, parallel_config)`` up to 0.21, then also the model, then (0.25) the whole
  configuration. There is none here: what is needed is made when the channel is opened.
* ``receive_weights`` is given a loader up to 0.24; later the engine loads by itself.
* ``start_weight_update`` and ``finish_weight_update`` belong to the engine from 0.25; before, the worker does the same.
* ``trainer_send_weights`` is abstract up to 0.27.

vLLM's factory imports this module when the first worker asks for the engine; nothing else may.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from vllm.distributed.weight_transfer.base import WeightTransferEngine
from weightwire.engine_wire import EngineInit
from weightwire.errors import StateError

from weightwire_vllm_engine import wire
from weightwire_vllm_engine.channel import Channel, Load, Seen
from weightwire_vllm_engine.plan import Plan
from weightwire_vllm_engine.planner import Planner, log
from weightwire_vllm_engine.ranks import worker_rank


class WeightwireEngine(WeightTransferEngine):  # type: ignore[misc]  # vLLM is not installed where this is checked
    """Receives weights from a Weightwire trainer and loads them through the model's own loaders."""

    channel: Channel | None = None
    planner: Planner | None = None
    plan: Plan | None = None
    """What the round under way lands by; None where it takes vLLM's reload, as every round does up to 0.24."""

    landed = False
    """Something landed by the plan, in the round under way."""

    reloading = False
    """The model's layers are out of order, from the start of a reload to its finish, also where an update failed."""

    def parse_init_info(self, init_dict: Mapping[str, object]) -> EngineInit:
        """Decode what the trainer says of the channel."""
        return wire.decode_init(init_dict)

    def parse_update_info(self, update_dict: Mapping[str, object]) -> wire.Update:
        """Decode what the trainer says of one update."""
        return wire.decode_update(update_dict)

    def init_transfer_engine(self, init_info: EngineInit) -> None:
        """Leave the channel there was, and join the one that the trainer opened."""
        self.shutdown()
        self.channel = Channel.join(init_info, worker_rank(self.parallel_config, init_info.rank_offset))

    def start_weight_update(self) -> None:
        """Choose the way that the round takes, and for the reload let every layer take new weights: from 0.25."""
        self.planner = self.planner or Planner()
        self.plan, self.landed = self.planner.begin(self.model, self._plannable()), False
        if self.plan is None:
            from vllm.model_executor.model_loader.reload import initialize_layerwise_reload  # noqa: PLC0415

            self.reloading = True
            initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        """Put every layer back to work, where the round took them apart: from 0.25."""
        if self.plan is not None:
            if self.landed:  # else a round that was left open is closed, and nothing came of it
                log.info("Weightwire: the round landed by the plan.")
            return
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload  # noqa: PLC0415

        finalize_layerwise_reload(self.model, self.model_config)
        self.reloading = False
        if self.planner is not None:
            log.info("Weightwire: the round took vLLM's reload: %s.", self.planner.why)
            self.planner.end()

    def receive_weights(self, update_info: wire.Update, load_weights: Load | None = None) -> None:
        """Receive one window into the live model.

        Args:
            update_info: which tensors.
            load_weights: the model's loader, up to 0.24; later the engine asks the model itself.

        Raises:
            StateError: there is no channel, or it was opened for other tensors.
        """
        channel = self.channel
        if channel is None:
            raise StateError(
                "The server has no open channel: the trainer's went away, or none was ever opened.",
                hint="connect again; a session does so by itself at the next push",
            )
        try:
            if self.plan is not None:
                self._refuse_another_manifest(channel.init)
                channel.land(update_info, self.plan)
                self.landed = True
            else:
                channel.receive(update_info, load_weights or self.model.load_weights, self._seen())
        except BaseException:
            channel.abort()  # the other members could not be kept in step
            self.channel = None
            raise

    def shutdown(self) -> None:
        """Leave the channel, if there is one."""
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.close()

    def _plannable(self) -> EngineInit | None:
        """What the channel was opened for, where the model is in order, and the one that the engine was made for."""
        usual = self.model is getattr(self, "_default_model", self.model)  # else it is a draft model's turn
        return self.channel.init if self.channel is not None and usual and not self.reloading else None

    def _seen(self) -> Seen | None:
        """Whom to tell what was loaded: nobody, where the channel is of another manifest than the round."""
        planner, channel = self.planner, self.channel
        if planner is None or channel is None or planner.proof is None or not planner.is_for(channel.init):
            return None
        return planner.proof.see

    def _refuse_another_manifest(self, init: EngineInit) -> None:
        """Refuse to land what the plan was not made for.

        Raises:
            StateError: a channel for another manifest was opened after the update was started.
        """
        if self.planner is None or not self.planner.is_for(init):
            raise StateError(
                "This update was started for another manifest than the channel was opened for since.",
                hint="start the update again, once the channel is open",
            )

    @staticmethod
    def trainer_send_weights(iterator: object, trainer_args: object) -> NoReturn:
        """Refuse: vLLM's own trainer side can't feed this engine. Abstract up to 0.27, so it has to be here."""
        raise NotImplementedError("Weightwire's engine is fed by weightwire.connect(...).push(...)")
