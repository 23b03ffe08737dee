"""A channel that broke is let go of at once: its sockets and threads do not wait for Python's garbage collector."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from types import FrameType

import pytest
import weightwire
from weightwire.errors import UpdateFailed
from weightwire_testing.model import TinyLlama
from weightwire_testing.reference import EngineSettings

OPEN = Path("/proc/self/fd")
FAULTS = (
    "pause:cut:after",
    "update:refuse=500,it broke",
    "update:cut:after",
    "finish:garbage",
    "finish:cut:after",
    "weight_info:refuse=500,it broke@2",
    "resume:cut@*",
)
ROUNDS = 3
SECONDS = 10.0

pytestmark = pytest.mark.skipif(not OPEN.is_dir(), reason="looks into /proc")


def descriptors() -> int:
    return len(list(OPEN.iterdir()))


def test_rounds_in_which_the_engine_dies_leave_no_descriptor_open(reference_engine):
    engine = reference_engine(EngineSettings(version="0.32.0"))
    with weightwire.connect(engine.url, TinyLlama(seed=2), {"timeout": 8}) as session:
        session.push(0)
        gc.collect()
        before = descriptors()
        gc.disable()
        try:
            for number in range(ROUNDS):
                engine.set_faults("update:die")
                with pytest.raises(UpdateFailed):
                    session.push(f"{number} fails")
                engine.start()
                session.push(f"{number} does not")
            until = time.monotonic() + SECONDS  # groups are left on threads of their own
            while descriptors() > before and time.monotonic() < until:
                time.sleep(0.05)
            assert descriptors() <= before
        finally:
            gc.enable()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_round_that_fails_leaves_no_frame_that_only_a_full_collection_would_free(reference_engine, fault):
    engine = reference_engine(EngineSettings(version="0.32.0"))
    with weightwire.connect(engine.url, TinyLlama(seed=2), {"timeout": 8}) as session:
        session.push(0)
        gc.collect()
        gc.disable()
        try:
            engine.set_faults(fault)
            with pytest.raises(UpdateFailed):
                session.push("fails")
            engine.set_faults()
            session.push("does not")
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left = [each.f_code.co_qualname for each in gc.garbage if isinstance(each, FrameType)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert left == []
