"""What every experiment is told, and how it tells what it found."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Served:
    """A server that is up, or on its way.

    Attributes:
        url: its base URL.
        model: the directory that it serves.
        pid: its first process, which leads its group; 0 where somebody else started it.
        log: the file that it writes to.
        ready: seconds from its start until it answered.
    """

    url: str
    model: str
    pid: int = 0
    log: str = ""
    ready: float = 0.0


@dataclass
class Context:
    """One run.

    Attributes:
        version: the vLLM that is served.
        site: where that vLLM is unpacked.
        out: where results go.
        until: when to stop, in seconds of ``time.time()``.
        device: the trainer's, ``cuda`` or (in a rehearsal) ``cpu``.
        library: another libnccl than torch's; empty where none was brought.
        servers: by name.
        options: of every session.
    """

    version: str
    site: str
    out: str
    until: float
    device: str = "cuda"
    library: str = ""
    servers: dict[str, Served] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str) -> Context:
        """Read what :meth:`save` wrote, in the process of an experiment, which may have an end of its own."""
        fields = json.loads(Path(path).read_text())
        fields["servers"] = {name: Served(**served) for name, served in fields["servers"].items()}
        fields["until"] = min(fields["until"], float(os.environ.get("GPU_UNTIL", "inf")))
        return cls(**fields)

    def save(self, path: Path) -> Path:
        """Write it down for a child process."""
        path.write_text(json.dumps(asdict(self)))
        return path

    @property
    def left(self) -> float:
        """Seconds left."""
        return self.until - time.time()

    @property
    def cuda(self) -> bool:
        """Whether there is a GPU."""
        return self.device == "cuda"


class Results:
    """One line a result on stdout, and one JSON object a line in ``results.jsonl``."""

    def __init__(self, context: Context, experiment: str) -> None:
        """Append to the file of the run."""
        self._context = context
        self._experiment = experiment
        self._file = Path(context.out) / "results.jsonl"

    def tell(self, what: str, *, ok: bool | None = None, **figures: object) -> None:
        """Tell one result.

        Args:
            what: a sentence without figures, the same in every run.
            ok: whether it is as it should be; None for a mere measurement.
            figures: the measurements.
        """
        sign = {True: "ok  ", False: "FAIL", None: "    "}[ok]
        said = " ".join(f"{name}={_short(value)}" for name, value in figures.items())
        sys.stdout.write(f"{sign} {self._context.version} {self._experiment}: {what} {said}\n")
        sys.stdout.flush()
        row = {"version": self._context.version, "experiment": self._experiment, "what": what, "ok": ok}
        with self._file.open("a") as file:
            file.write(json.dumps(row | figures, default=str) + "\n")

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Go on after a step that raises; the error is the result."""
        began = time.monotonic()
        try:
            yield
        except Exception as error:  # noqa: BLE001 - told, and the other steps still run
            took = time.monotonic() - began
            self.tell(what, ok=False, error=f"{type(error).__name__}: {str(error)[:600]}", seconds=took)


def main(experiment: str, work: Callable[[Context, Results], None]) -> None:
    """Run one experiment in this process: ``python exp_x.py CONTEXT.json``."""
    context = Context.load(sys.argv[1])
    results = Results(context, experiment)
    with results.step("the experiment as a whole"):
        work(context, results)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("\n", " / ")
