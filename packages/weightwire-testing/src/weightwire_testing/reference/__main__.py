"""``python -m weightwire_testing.reference``: run a reference engine until it is stopped.

Its first line on stdout is a JSON object with ``port``, ``url`` and ``pid``, written once it answers.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
from weightwire.errors import ConfigurationError

from weightwire_testing.faults import Fault
from weightwire_testing.reference.reports import Ready
from weightwire_testing.reference.settings import Backend, EngineSettings


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m weightwire_testing.reference",
        description="A small inference server that speaks vLLM's weight-transfer protocol, failures included.",
    )
    parser.add_argument("--checkpoint", required=True, type=Path, help="what weightwire_testing.model saved")
    parser.add_argument("--version", "--dialect", default="0.32.0", help="the vLLM release to behave as")
    parser.add_argument("--backend", default=Backend.WEIGHTWIRE, type=Backend, choices=list(Backend))
    parser.add_argument("--port", default=0, type=int, help="0 lets the system choose")
    parser.add_argument("--workers", default=1, type=int, help="workers of a data-parallel rank")
    parser.add_argument("--data-parallel", default=1, type=int, help="data-parallel ranks")
    parser.add_argument("--timeout", default=30.0, type=float, help="seconds a worker waits for its peers")
    parser.add_argument("--death-delay", default=0.5, type=float, help="seconds from the engine's death to the end")
    parser.add_argument("--no-dev-mode", action="store_true", help="leave out the routes for weights")
    parser.add_argument("--hang-on-lost-peer", action="store_true", help="as NCCL: wait for a dead sender for ever")
    parser.add_argument("--served-name", default="model", help="the model's name")
    parser.add_argument("--fault", default=[], action="append", help="PHASE:KIND[:before|:after][=VALUE][@NTH]")
    parser.add_argument("--until-stdin-closes", action="store_true", help="end with the process that started it")
    return parser


def _settings(given: argparse.Namespace) -> EngineSettings:
    settings = EngineSettings(
        checkpoint=str(given.checkpoint),
        version=given.version,
        backend=given.backend,
        workers=given.workers,
        data_parallel=given.data_parallel,
        dev_mode=not given.no_dev_mode,
        timeout=given.timeout,
        hang_on_lost_peer=given.hang_on_lost_peer,
        served_name=given.served_name,
        death_delay=given.death_delay,
        faults=tuple(Fault.parse(spec) for spec in given.fault),
    )
    if not (given.checkpoint / "config.json").is_file():
        raise ConfigurationError(f"{given.checkpoint} holds no config.json, so it is no checkpoint.")
    settings.release  # noqa: B018 - read, so that a wrong version is refused before torch is imported
    return settings


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main(arguments: Sequence[str]) -> int:
    """Serve.

    Returns:
        An exit status: 2 for a wrong argument; a server ends by a signal.
    """
    given = _parser().parse_args(arguments)
    try:
        settings = _settings(given)
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    from weightwire_testing.reference.app import Application  # noqa: PLC0415 - torch: not for a wrong argument
    from weightwire_testing.reference.server import Server  # noqa: PLC0415

    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    if given.until_stdin_closes:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        server = Server(Application(settings), given.port)
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"Port {given.port} can't be listened on: {error}. Leave --port out, and one is chosen.\n")
        return 2
    ready = Ready(server.server_port, f"http://127.0.0.1:{server.server_port}", os.getpid())
    sys.stdout.write(msgspec.json.encode(ready).decode() + "\n")
    sys.stdout.flush()
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
