"""Which way a round takes: straight into the model by a proven plan, or through vLLM's layer-wise reload."""

from __future__ import annotations

import logging
from typing import Any

from weightwire.engine_wire import EngineInit

from weightwire_vllm_engine import plain
from weightwire_vllm_engine.plan import HalfLoadedError, Plan, UnplannableError
from weightwire_vllm_engine.proof import Proof
from weightwire_vllm_engine.recording import record

log = logging.getLogger("vllm.weightwire")
"""Below vLLM's own logger: the others of a server say nothing."""


class Planner:
    """Keeps a worker's plan for the manifest of the open channel: records it, has a round prove it, then lends it out.

    What is said against a plan is said for good, as long as the manifest is the same: the model takes the reload.

    Attributes:
        proof: of the round under way; None where it proves nothing.
        why: why the round under way does not land by a plan.
    """

    def __init__(self) -> None:
        """Know no manifest yet."""
        self.proof: Proof | None = None
        self.why = ""
        self._digest = ""
        self._plan: Plan | None = None
        self._proven = False
        self._against = ""

    def begin(self, model: Any, init: EngineInit | None) -> Plan | None:
        """Begin a round.

        Args:
            model: the worker's.
            init: what the channel was opened for; None where this round can't land by a plan, whatever the model.

        Returns:
            What to land by; None where the round takes the reload, and :attr:`proof` what it then proves.
        """
        self.proof = None
        if init is None:
            self.why = "no channel is open, the model was left half loaded, or it is a draft model's turn"
            return None
        if init.digest != self._digest or (self._plan is not None and self._plan.moved):
            self._digest, self._plan, self._proven, self._against = init.digest, None, False, ""
        if self._plan is None:
            self.why = self._against or self._record(model, init)
        if self._plan is not None and not self._proven:
            self.proof = Proof(self._plan)
            self.why = "this round proves the plan"
        return self._plan if self._proven else None

    def end(self) -> None:
        """End a round that took the reload, once everything was put back to work."""
        proof, self.proof = self.proof, None
        if proof is None:
            return
        try:
            self._proven = proof.end()
        except UnplannableError as error:
            self._refuse(str(error))
        if self._proven:
            log.info("Weightwire's load plan is proven: from now on weights land straight in the model.")

    def is_for(self, init: EngineInit) -> bool:
        """Whether the round under way was begun for the manifest of this channel."""
        return init.digest == self._digest

    def _record(self, model: Any, init: EngineInit) -> str:
        """Record a plan, or say why there is none. Whatever goes wrong: the reload can do without."""
        try:
            plain.check(model)
            self._plan = record(model, init.tensors)
        except HalfLoadedError as error:
            return str(error)
        except UnplannableError as error:
            return self._refuse(str(error))
        except Exception as error:  # noqa: BLE001 - a kind of tensor or module that nobody here has seen
            return self._refuse(f"{type(error).__name__}: {error}")
        return ""

    def _refuse(self, against: str) -> str:
        self._plan, self._against = None, against
        log.info("Weightwire has no load plan for this model, and takes vLLM's reload: %s.", against)
        return against
