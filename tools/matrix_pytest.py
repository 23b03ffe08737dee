"""Runs a pytest in another process, and reads what came of it from its report."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from matrix_cells import ROOT

TAIL = 1500
"""Characters of the end of what it said, kept of a run that failed."""


@dataclass(frozen=True)
class Report:
    """What a run of pytest gave.

    Attributes:
        tests: how many ran, those that were skipped left out.
        failures: of those, how many failed or had an error.
        properties: what the suite recorded of itself.
        tail: the end of what it printed.
    """

    tests: int
    failures: int
    properties: dict[str, str]
    tail: str


def run(command: Sequence[str], *, log: Path, seconds: float) -> Report:
    """Run ``python -m pytest …``; its output goes to *log*.

    Args:
        command: the interpreter, and everything after it.
        log: a file to write.
        seconds: the longest it may take; it is stopped then, with everything that it started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="matrix-") as scratch, log.open("wb") as output:
        junit = Path(scratch) / "junit.xml"
        late = ""
        with subprocess.Popen(
            [*command, f"--junitxml={junit}"], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        ) as process:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.terminate()  # pytest ends its servers, as on SIGTERM
                late = f"\nstopped after {seconds:.0f} s"
        tail = log.read_bytes()[-TAIL:].decode(errors="replace") + late
        return _read(junit, tail) if junit.is_file() and not late else Report(0, 1, {}, tail)


def _read(junit: Path, tail: str) -> Report:
    suite = ET.parse(junit).getroot().find("testsuite")
    if suite is None:
        return Report(0, 1, {}, tail)
    number = {name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")}
    properties = {str(each.get("name")): str(each.get("value")) for each in suite.iter("property")}
    return Report(
        number["tests"] - number["skipped"], number["failures"] + number["errors"], properties=properties, tail=tail
    )
