from __future__ import annotations

import pytest
from weightwire.errors import ConfigurationError
from weightwire_testing.faults import EVERY, Fault, FaultPlan, Kind, Phase, When


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("start:die", Fault(phase=Phase.START, kind=Kind.DIE)),
        ("resume:cut:after@3", Fault(phase=Phase.RESUME, kind=Kind.CUT, when=When.AFTER, nth=3)),
        ("is_paused:stall=0.5", Fault(phase=Phase.IS_PAUSED, kind=Kind.STALL, seconds=0.5)),
        ("connect:stall", Fault(phase=Phase.CONNECT, kind=Kind.STALL, seconds=3600)),
        ("pause:garbage@*", Fault(phase=Phase.PAUSE, kind=Kind.GARBAGE, when=When.AFTER, nth=EVERY)),
        ("init:truncate", Fault(phase=Phase.INIT, kind=Kind.TRUNCATE, when=When.AFTER)),
        ("finish:trickle=1", Fault(phase=Phase.FINISH, kind=Kind.TRICKLE, when=When.AFTER, seconds=1)),
        ("update:refuse=503,a, b@2", Fault(phase=Phase.UPDATE, kind=Kind.REFUSE, nth=2, status=503, text="a, b")),
        ("update:refuse=404", Fault(phase=Phase.UPDATE, kind=Kind.REFUSE, status=404)),
        ("receive:refuse=at @home@7", Fault(phase=Phase.RECEIVE, kind=Kind.REFUSE, nth=7, text="at @home")),
    ],
)  # fmt: skip
def test_a_fault_is_read_from_words(spec: str, expected: Fault) -> None:
    assert Fault.parse(spec) == expected


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("nonsense", "is not a fault"),
        ("update", "is not a fault"),
        ("upgrade:die", "known are connect"),
        ("update:explode", "known are refuse"),
        ("update:stall=long", "not a number of seconds"),
        ("update:die=9", "takes no value"),
        ("receive:garbage", "in a collective there is only"),
        ("update:die:during", "is not a fault"),
    ],
)
def test_a_wrong_fault_is_refused_in_words(spec: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Fault.parse(spec)


def test_a_plan_counts_each_phase_by_itself() -> None:
    fault = Fault.parse("update:die@2")
    plan = FaultPlan((fault,))
    assert plan.next(Phase.UPDATE) is None
    assert plan.next(Phase.START) is None
    assert plan.next(Phase.UPDATE) is fault
    assert plan.next(Phase.UPDATE) is None


def test_a_fault_of_every_call_never_ends() -> None:
    plan = FaultPlan((Fault.parse("update:die@*"),))
    assert all(plan.next(Phase.UPDATE) for _ in range(3))


def test_of_two_faults_for_one_call_the_first_strikes() -> None:
    plan = FaultPlan((Fault.parse("update:die"), Fault.parse("update:stall")))
    found = plan.next(Phase.UPDATE)
    assert found is not None
    assert found.kind is Kind.DIE
