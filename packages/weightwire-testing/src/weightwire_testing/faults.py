"""What the reference engine can be told to do wrong, where and when.

A fault in words, as ``--fault`` and :meth:`Fault.parse` read it::

    PHASE:KIND[:before|:after][=VALUE][@NTH]

    update:refuse=500,out of memory     the next update is refused with this status and text; nothing is done
    finish:refuse:after                 it is done, and refused all the same
    is_paused:stall=30@2                the second call is held for 30 s, then answered
    start:die                           the process ends before it acts
    resume:cut:after                    it acts, then drops the connection without a word
    weight_info:garbage@*               every call is answered with something that is not JSON
    pause:truncate                      half of the reply, then the connection ends
    connect:trickle=0.01                one byte of the reply every 0.01 s
    receive:refuse=boom@7               the seventh tensor (or pack) of an update can't be loaded
    receive:stall=60                    the worker sits still in the collective

``connect`` is ``GET /version``, ``receive`` the collectives of the data plane; the others are the routes.
Calls are counted from the time the faults were set.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from enum import StrEnum

import msgspec
from weightwire.errors import ConfigurationError


class Phase(StrEnum):
    """Where a fault strikes."""

    CONNECT = "connect"
    HEALTH = "health"
    SERVER_INFO = "server_info"
    WORLD_SIZE = "world_size"
    INIT = "init"
    MARK = "mark"
    PAUSE = "pause"
    START = "start"
    UPDATE = "update"
    RECEIVE = "receive"
    FINISH = "finish"
    RESUME = "resume"
    IS_PAUSED = "is_paused"
    WEIGHT_INFO = "weight_info"
    SHUTDOWN = "shutdown"
    COMPLETIONS = "completions"


class Kind(StrEnum):
    """What goes wrong."""

    REFUSE = "refuse"
    STALL = "stall"
    GARBAGE = "garbage"
    TRUNCATE = "truncate"
    CUT = "cut"
    DIE = "die"
    TRICKLE = "trickle"


class When(StrEnum):
    """Whether the engine has acted by then."""

    BEFORE = "before"
    AFTER = "after"


EVERY = 0
"""As ``nth``: every call."""

_AFTER_BY_DEFAULT = frozenset({Kind.GARBAGE, Kind.TRUNCATE, Kind.TRICKLE})
_IN_A_COLLECTIVE = frozenset({Kind.REFUSE, Kind.STALL, Kind.DIE})
_SECONDS = {Kind.STALL: 3600.0, Kind.TRICKLE: 0.02}
_GRAMMAR = re.compile(
    r"(?P<phase>\w+):(?P<kind>\w+)(:(?P<when>before|after))?(=(?P<value>.*?))?(@(?P<nth>\d+|\*))?", re.DOTALL
)


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault.

    Attributes:
        phase: where.
        kind: what.
        when: before or after the engine acts.
        nth: which call of that phase, from 1; :data:`EVERY` for all.
        seconds: how long a stall lasts, or the time between two bytes of a trickle.
        status: the HTTP status of a refusal.
        text: the words of a refusal.
    """

    phase: Phase
    kind: Kind
    when: When = When.BEFORE
    nth: int = 1
    seconds: float = 0.0
    status: int = 500
    text: str = "refused by the test"

    @classmethod
    def parse(cls, spec: str) -> Fault:
        """Read the grammar of the module's docstring.

        Raises:
            ConfigurationError: it does not follow the grammar, or makes no sense.
        """
        found = _GRAMMAR.fullmatch(spec)
        if found is None:
            raise ConfigurationError(
                f"{spec!r} is not a fault.", hint="write PHASE:KIND[:before|:after][=VALUE][@NTH], as in update:cut@2"
            )
        try:
            phase, kind = Phase(found["phase"]), Kind(found["kind"])
        except ValueError as error:
            words = ", ".join(Phase if "Phase" in str(error) else Kind)
            raise ConfigurationError(f"{spec!r} is not a fault: {error}; known are {words}.") from error
        if phase is Phase.RECEIVE and kind not in _IN_A_COLLECTIVE:
            raise ConfigurationError(f"{spec!r}: in a collective there is only {', '.join(sorted(_IN_A_COLLECTIVE))}.")
        when = When(found["when"] or (When.AFTER if kind in _AFTER_BY_DEFAULT else When.BEFORE))
        nth = EVERY if found["nth"] == "*" else int(found["nth"] or 1)
        return _with_value(cls(phase=phase, kind=kind, when=when, nth=nth), found["value"], spec)

    def hits(self, phase: Phase, call: int) -> bool:
        """Whether it strikes at call number *call* (from 1) of *phase*."""
        return self.phase is phase and self.nth in (EVERY, call)


def _with_value(fault: Fault, value: str | None, spec: str) -> Fault:
    replace = msgspec.structs.replace
    if fault.kind in _SECONDS:
        try:
            return replace(fault, seconds=_SECONDS[fault.kind] if value is None else float(value))
        except ValueError as error:
            raise ConfigurationError(f"{spec!r}: {value!r} is not a number of seconds.") from error
    if value is None:
        return fault
    if fault.kind is not Kind.REFUSE:
        raise ConfigurationError(f"{spec!r}: {fault.kind} takes no value.")
    status, comma, text = value.partition(",")
    if status.isdigit():
        return replace(fault, status=int(status), text=text if comma else fault.text)
    return replace(fault, text=value)


class FaultPlan:
    """The faults in force, and the calls seen since they were set. Shared by threads."""

    def __init__(self, faults: tuple[Fault, ...] = ()) -> None:
        """Count from zero."""
        self.faults = faults
        self._calls: Counter[Phase] = Counter()
        self._lock = threading.Lock()

    def replace(self, faults: tuple[Fault, ...]) -> None:
        """Put others in force, and count anew."""
        with self._lock:
            self.faults = faults
            self._calls.clear()

    def next(self, phase: Phase) -> Fault | None:
        """Count one call of *phase*, and say what it is to suffer."""
        with self._lock:
            self._calls[phase] += 1
            return next((fault for fault in self.faults if fault.hits(phase, self._calls[phase])), None)
