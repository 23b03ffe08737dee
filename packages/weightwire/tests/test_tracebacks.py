"""An error that is kept, and knows itself through its own frames, holds nothing of what it came through."""

from __future__ import annotations

import gc
import threading
import traceback
import weakref

import pytest
from weightwire.tracebacks import let_go


class Buffer:
    """What must not be held."""


@pytest.fixture
def no_collector():
    gc.disable()
    yield
    gc.enable()


def failing(gone: threading.Event) -> None:
    buffer = Buffer()
    weakref.finalize(buffer, gone.set)
    itself = OSError("no")  # known to a frame on its way, as pluggy and contextlib know what they hand on
    raise itself


def test_what_was_on_an_errors_way_is_let_go_of_and_the_way_is_still_told(no_collector):
    gone = threading.Event()
    with pytest.raises(OSError, match="no") as caught:
        failing(gone)
    assert not gone.is_set()
    let_go(caught.value)
    assert gone.is_set()
    assert "in failing" in "".join(traceback.format_exception(caught.value))
