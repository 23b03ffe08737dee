"""Numbers as people read them."""

from __future__ import annotations

import pytest
from weightwire.cli.units import seconds, size


@pytest.mark.parametrize(
    ("nbytes", "said"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (16 * 2**20, "16.0 MiB"),
        (3 * 2**30, "3.0 GiB"),
        (2**50, "1024.0 TiB"),
    ],
)
def test_bytes_are_said_in_the_unit_that_fits(nbytes, said):
    assert size(nbytes) == said


@pytest.mark.parametrize(("value", "said"), [(0.0, "0.0 ms"), (0.0123, "12.3 ms"), (1.0, "1.00 s"), (75.5, "75.50 s")])
def test_seconds_below_one_are_milliseconds(value, said):
    assert seconds(value) == said
