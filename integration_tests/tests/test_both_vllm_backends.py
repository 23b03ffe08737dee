"""Both control planes for vLLM installed side by side: the release decides, and a wrong name is refused."""

from __future__ import annotations

import pytest
import weightwire
from weightwire import negotiate
from weightwire.deadlines import Deadline
from weightwire.errors import CompatibilityError
from weightwire.http import Http
from weightwire.options import Options
from weightwire_testing.reference.settings import EngineSettings
from weightwire_vllm.control import VllmControl
from weightwire_vllm_legacy.control import LegacyControl


@pytest.fixture
def choose(reference_engine):
    """Chooses a control plane for a release, out of all that are installed here."""

    def make(version, **options):
        given = Options(**options)
        http = Http(reference_engine(EngineSettings(version=version)).url, given)
        return negotiate.control_plane(weightwire.plugins().registry, http, given, Deadline.after(20))

    return make


@pytest.mark.parametrize(
    ("version", "plane"),
    [("0.17.1", LegacyControl), ("0.20.2", LegacyControl), ("0.21.0", VllmControl), ("0.33.0", VllmControl)],
)
def test_the_release_decides(choose, version, plane):
    assert type(choose(version)) is plane


@pytest.mark.parametrize(
    ("version", "name", "plane"), [("0.20.2", "vllm-legacy", LegacyControl), ("0.32.0", "vllm", VllmControl)]
)
def test_the_right_one_may_be_asked_for_by_name(choose, version, name, plane):
    assert type(choose(version, control_plane=name)) is plane


@pytest.mark.parametrize("untested", [False, True])
@pytest.mark.parametrize(
    ("version", "name"), [("0.20.2", "vllm"), ("0.21.0", "vllm-legacy"), ("0.32.0", "vllm-legacy")]
)
def test_the_wrong_one_refuses_and_says_which_releases_are_its_own(choose, version, name, untested):
    with pytest.raises(CompatibilityError, match=version) as caught:
        choose(version, control_plane=name, allow_untested=untested)
    assert "control_plane" in caught.value.hint


def test_an_untested_newer_release_goes_to_the_newest_form_and_only_if_it_is_asked_for(choose):
    with pytest.raises(CompatibilityError, match=r"0\.40\.0 is outside") as caught:
        choose("0.40.0")
    assert "--allow-untested" in caught.value.hint
    assert type(choose("0.40.0", allow_untested=True)) is VllmControl
