"""The command ``weightwire``. Needs the extra ``weightwire[cli]``; this module alone does not."""

from __future__ import annotations

import signal
import sys
from importlib.util import find_spec

NEEDS = ("typer", "rich")
USAGE = 2
"""The same as ``exit_codes.ExitCode.USAGE``; not imported, since this module must come up without the extra."""


def main() -> None:
    """Run the command, and leave with its exit code."""
    if any(find_spec(module) is None for module in NEEDS):
        sys.stderr.write("The command needs typer and rich: pip install 'weightwire[cli]'\n")
        sys.exit(USAGE)
    from weightwire.cli.app import run  # noqa: PLC0415 - it imports typer

    # Asked to end, as by Ctrl-C: the engines are settled and the servers that were started are stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run(sys.argv[1:]))
