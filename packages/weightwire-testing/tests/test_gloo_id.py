"""The 128 bytes that name the sender's store."""

from __future__ import annotations

import pytest
from weightwire_testing import gloo_id


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 1), ("::1", 65535), ("trainer-0.example", 29500)])
def test_an_address_comes_back_as_it_was(host, port):
    unique_id = gloo_id.encode(host, port)
    assert len(unique_id) == gloo_id.UNIQUE_ID_BYTES
    assert gloo_id.decode(unique_id) == (host, port)


def test_a_host_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="too long"):
        gloo_id.encode("h" * 128, 1)


@pytest.mark.parametrize(
    "unique_id",
    [b"\x07" * 128, b"GLOO:127.0.0.1:4711", b"GLOO:127.0.0.1".ljust(128, b"\0"), b"GLOO:a:1".ljust(127, b"\0") + b"x"],
)
def test_an_id_of_another_kind_is_refused_and_says_which_plane_to_use(unique_id):
    with pytest.raises(ValueError, match="stock-shim"):
        gloo_id.decode(unique_id)
