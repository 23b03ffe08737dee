"""Build the wheel of every member, with the build backend that the lock names and without touching the network.

Usage: ``uv run --frozen python tools/build_wheels.py DIRECTORY``
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def build(destination: Path) -> list[Path]:
    """Build them all into *destination*.

    Returns:
        The wheels, sorted by name.

    Raises:
        subprocess.CalledProcessError: a build failed; its output is on the terminal.
    """
    command = ["uv", "build", "--quiet", "--offline", "--all-packages", "--wheel", "--no-build-isolation"]
    subprocess.run([*command, "--python", sys.executable, "--out-dir", str(destination)], cwd=ROOT, check=True)
    return sorted(destination.glob("*.whl"))


if __name__ == "__main__":
    for wheel in build(Path(sys.argv[1]).resolve()):
        print(wheel.name)
