"""Cells of the tier *contract*: the facts of the release, and the reference engine that behaves as it does."""

from __future__ import annotations

import tempfile
from pathlib import Path

import requests
import torch
import weightwire
from contract_rules import Contract
from extract_contract import CONTRACTS, breaches, load, recorded
from matrix_cells import Cell
from matrix_setups import SET_UPS, engine_settings, session_options
from weightwire.errors import WeightwireError
from weightwire_testing.model import TinyLlama, fingerprint, save_checkpoint
from weightwire_testing.reference.launcher import ReferenceEngine
from weightwire_testing.reference.pool import EnginePool

CHANGES = frozenset({"/pause", "/init_weight_transfer_engine", "/start_weight_update", "/update_weights"})
"""Calls that change something in a server; a refusal comes before all of them."""


class Failed(Exception):
    """A cell that did not give what it should, in a line."""


class Bench:
    """Reference engines and a model; one for all cells of a run."""

    def __init__(self) -> None:
        """Start no engine yet."""
        self._scratch = tempfile.TemporaryDirectory(prefix="matrix-")
        self._pool = EnginePool()
        self._a, self._b = TinyLlama(seed=1), TinyLlama(seed=2)
        self._checkpoint = str(save_checkpoint(self._a, Path(self._scratch.name) / "checkpoint"))

    def run(self, cell: Cell) -> str:
        """Try a cell; returns what there is to say of it.

        Raises:
            Failed: it gave something else than the matrix expects.
        """
        engine = self._pool.lend(engine_settings(cell, self._checkpoint))
        try:
            if cell.expect == "refuse":
                return self._refused(cell, engine)
            return ", ".join(filter(None, [_facts(cell), self._there_and_back(cell, engine)]))
        finally:
            self._pool.give_back(engine)

    def close(self) -> None:
        """End the engines."""
        self._pool.close()
        self._scratch.cleanup()

    def _there_and_back(self, cell: Cell, engine: ReferenceEngine) -> str:
        with weightwire.connect(engine.url, self._b, session_options(cell)) as session:
            session.push(1)
        if engine.fingerprint() != fingerprint(self._b.checkpoint_tensors()):
            raise Failed("the reference engine does not hold what was pushed")
        with weightwire.connect(engine.url, self._a, session_options(cell)) as session:
            session.push(2)
        if engine.fingerprint() != fingerprint(self._a.checkpoint_tensors()):
            raise Failed("the reference engine does not hold what was pushed back")
        return "there and back in the reference engine, bit for bit"

    def _refused(self, cell: Cell, engine: ReferenceEngine) -> str:
        extra = SET_UPS[cell.setup]
        if extra.asleep:
            requests.post(f"{engine.url}/sleep", timeout=20).raise_for_status()
        model = torch.nn.ParameterDict({"scale": torch.nn.Parameter(torch.ones(1))}) if extra.scalar else self._b
        try:
            weightwire.connect(engine.url, model, session_options(cell)).close()
        except WeightwireError as error:
            return _refusal(cell, engine, error)
        raise Failed("it was not refused")


def _refusal(cell: Cell, engine: ReferenceEngine, error: WeightwireError) -> str:
    if cell.says not in error.message:
        raise Failed(f"it was refused in other words: {error.message}") from error
    if not error.hint:
        raise Failed("the refusal does not say what to do") from error
    changed = sorted({call.path for call in engine.calls() if call.method == "POST"} & CHANGES)
    if changed:
        raise Failed(f"it was refused after {', '.join(changed)}") from error
    return f"{type(error).__name__}: {error.message} Try: {error.hint}".replace(engine.url, "URL")


def _facts(cell: Cell) -> str:
    """Hold what we send and believe against the release's contract, where one is recorded."""
    if cell.vllm not in recorded(CONTRACTS):
        return ""
    contract = Contract(cell.vllm, load(cell.vllm, CONTRACTS))
    found = breaches(contract)
    if found:
        raise Failed(f"{len(found)} breaches: {'; '.join(found)}")
    return f"{len(contract.facts)} facts hold"
