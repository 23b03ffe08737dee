"""Our own planes and sources pass the kit."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from weightwire.http import Http
from weightwire.options import Options
from weightwire_testing.conformance import ControlPlaneSuite, DataPlaneSuite, OnReferenceEngine, WeightSourceSuite
from weightwire_testing.model import ModelShape, TinyLlama, save_checkpoint
from weightwire_testing.reference import Backend, EngineSettings
from weightwire_testing.stock_plane import StockShimPlane
from weightwire_torch.checkpoint_source import CheckpointSource
from weightwire_torch.gloo_plane import GlooPlane
from weightwire_torch.sources import ModuleSource
from weightwire_vllm.control import VllmControl


class TestGlooPlane(DataPlaneSuite):
    receiver = "weightwire_testing.conformance.gloo_receiver:join"
    capabilities = frozenset(DataPlaneSuite.offers)

    def make_plane(self):
        return GlooPlane()


class OnVllm(OnReferenceEngine, ControlPlaneSuite):
    def make_control(self, url):
        return VllmControl(Http(url, Options()), self.settings.version)

    def make_plane(self):
        return GlooPlane()


class TestVllm022(OnVllm):
    settings = EngineSettings(version="0.22.1")


class TestVllm032WithTwoWorkers(OnVllm):
    settings = EngineSettings(version="0.32.0", workers=2)
    capabilities = frozenset(ControlPlaneSuite.offers)


class TestStockVllm028(OnVllm):
    settings = EngineSettings(version="0.28.0", backend=Backend.NCCL)
    capabilities = frozenset(ControlPlaneSuite.offers)

    def make_plane(self):
        return StockShimPlane()


class TestModuleSource(WeightSourceSuite):
    capabilities = frozenset({"changes"})
    model = TinyLlama(ModelShape(tied=True), seed=3)
    expected_names = frozenset(model.checkpoint_tensors())

    def make_source(self):
        return ModuleSource(self.model, Options())

    def change(self):
        with torch.no_grad():
            self.model.model.norm.weight.add_(1)


class TestCheckpointSource(WeightSourceSuite):
    model = TinyLlama(seed=3)
    expected_names = frozenset(model.checkpoint_tensors())
    folder = tempfile.TemporaryDirectory()
    checkpoint = save_checkpoint(model, Path(folder.name))

    def make_source(self):
        return CheckpointSource(self.checkpoint, Options())

    @classmethod
    def teardown_class(cls):
        cls.folder.cleanup()
