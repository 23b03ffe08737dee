"""Importing the core and finding every plugin loads no framework, and finds all of them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import weightwire
from weightwire.registry import load

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "vllm", "transformers", "trl", "deepspeed"}


@pytest.mark.parametrize("statement", ["import weightwire", "import weightwire; weightwire.plugins()"])
def test_neither_the_import_nor_discovery_loads_a_framework(statement: str) -> None:
    program = f"import sys; {statement}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""


def test_every_member_that_registers_is_found_and_none_is_broken() -> None:
    projects = [tomllib.loads(path.read_text())["project"] for path in ROOT.glob("p*/*/pyproject.toml")]
    registering = {project["name"] for project in projects if "weightwire" in project.get("entry-points", {})}

    catalogue = weightwire.plugins()

    assert registering == {record.distribution for record in catalogue.records}
    assert catalogue.broken == ()


def test_every_import_string_that_is_registered_names_something_to_call() -> None:
    registry = weightwire.plugins().registry
    tables = (registry.control_planes, registry.data_planes, registry.weight_sources, registry.commands)
    entries = [entry for table in tables for entry in table.values()]
    fields = [getattr(entry, name) for entry in entries for name in entry.__struct_fields__]
    references = [
        field for field in fields if isinstance(field, str) and field.startswith("weightwire") and ":" in field
    ]

    assert len(references) >= len(entries) > 0
    assert [reference for reference in references if not callable(load(reference))] == []
