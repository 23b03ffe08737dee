from __future__ import annotations

import pytest
from weightwire.errors import CompatibilityError
from weightwire_vllm.serve_args import advise


def _text(advice):
    return " ".join(advice.notes)


@pytest.mark.parametrize("version", ["0.21.0", "0.24.0", "0.33.0"])
def test_the_stock_server_needs_dev_mode_and_the_nccl_engine(version):
    stock, _ = advise(version)
    assert (stock.title, stock.install, stock.env) == ("stock", (), {"VLLM_SERVER_DEV_MODE": "1"})
    assert stock.command[:3] == ("vllm", "serve", "MODEL")
    assert stock.command[-2:] == ("--weight-transfer-config", '{"backend":"nccl"}')
    assert "VLLM_NCCL_SO_PATH" in _text(stock)


@pytest.mark.parametrize(("version", "name"), [("0.21.0", "ipc"), ("0.22.0", "weightwire"), ("0.33.0", "weightwire")])
def test_ours_is_installed_and_named_as_the_release_allows(version, name):
    _, ours = advise(version)
    assert (ours.title, ours.install) == ("ours", ("weightwire-vllm-engine",))
    assert ours.command[-1] == f'{{"backend":"{name}"}}'


@pytest.mark.parametrize("version", ["0.21.0", "0.33.0"])
def test_every_way_listens_on_loopback_and_says_why(version):
    for advice in advise(version):
        assert advice.command[3:5] == ("--host", "127.0.0.1")
        assert "never authenticated" in _text(advice)


@pytest.mark.parametrize(
    ("version", "said"), [("0.21.0", False), ("0.22.1", True), ("0.32.0", True), ("0.33.0", False)]
)
def test_the_old_rust_frontend_is_warned_of_where_it_is(version, said):
    assert ("VLLM_USE_RUST_FRONTEND" in _text(advise(version)[0])) is said


def test_below_0_27_a_paused_server_is_explained():
    assert "keeps no weight version" in _text(advise("0.26.0")[0])
    assert "keeps no weight version" not in _text(advise("0.27.0")[0])


@pytest.mark.parametrize(("version", "hint"), [("0.20.2", "weightwire-vllm-legacy"), ("0.34.0", "upgrade")])
def test_releases_outside_the_range_are_refused(version, hint):
    with pytest.raises(CompatibilityError, match="outside the releases") as caught:
        advise(version)
    assert hint in caught.value.hint
