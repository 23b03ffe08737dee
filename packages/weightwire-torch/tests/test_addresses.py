"""Which address is advertised to the workers."""

from __future__ import annotations

import pytest
from weightwire.errors import ChannelError
from weightwire_torch import addresses
from weightwire_torch.addresses import address_for, address_towards


@pytest.mark.parametrize(
    "urls",
    [
        [],
        ["http://127.0.0.1:8000"],
        ["http://localhost:8000", "http://[::1]:8000"],
        ["http://127.8.8.8:8000/prefix"],
        ["http://0.0.0.0:8000"],
    ],
)
def test_engines_on_this_machine_are_met_on_loopback(urls: list[str]) -> None:
    assert address_for(urls) == "127.0.0.1"


def test_one_engine_elsewhere_decides_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(addresses, "address_towards", lambda host: asked.append(host) or "10.0.0.7")
    assert address_for(["http://127.0.0.1:8000", "http://engine.example:8000"]) == "10.0.0.7"
    assert asked == ["engine.example"]


def test_the_address_towards_loopback_is_loopback() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"


def test_a_host_that_does_not_exist_is_said_with_the_option_to_set() -> None:
    with pytest.raises(ChannelError, match="advertise"):
        address_towards("no-such-host.invalid")
