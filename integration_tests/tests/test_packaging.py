"""Every wheel is whole, says the right things about itself, and installs alone."""

from __future__ import annotations

import configparser
import email
import subprocess
import zipfile
from collections.abc import Callable
from email.message import Message
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from fresh_environments import run
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
MEMBERS = sorted(path.parent.name for path in ROOT.glob("p*/*/pyproject.toml"))

LOOK_AROUND = """
import importlib, importlib.metadata as metadata, sys
importlib.import_module(sys.argv[1])
import weightwire
assert weightwire.plugins().broken == (), weightwire.plugins().broken
heavy = {"torch", "vllm", "transformers", "trl", "deepspeed"} & set(sys.modules)
assert not heavy or sys.argv[1] not in {"weightwire", "weightwire_vllm", "weightwire_vllm_legacy"}, heavy
print(*sorted(point.dist.name for point in metadata.entry_points(group="weightwire")))
"""


@pytest.fixture(params=MEMBERS)
def member(request: pytest.FixtureRequest) -> str:
    """Each member in turn."""
    name: str = request.param
    return name


@pytest.fixture
def wheel(wheels: list[Path], member: str) -> Path:
    """The member's wheel."""
    (found,) = [path for path in wheels if path.name.startswith(f"{member.replace('-', '_')}-")]
    return found


def text_of(wheel: Path, suffix: str) -> str:
    """The one file in *wheel* whose name ends so."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(suffix)]
        return archive.read(name).decode("utf-8")


def metadata_of(wheel: Path) -> Message:
    return email.message_from_string(text_of(wheel, ".dist-info/METADATA"))


def entry_points_of(wheel: Path) -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.read_string(text_of(wheel, ".dist-info/entry_points.txt"))
    return {group: dict(parser[group]) for group in parser.sections()}


def test_a_wheel_holds_its_package_typed_with_the_licence_and_nothing_else(wheel: Path, member: str) -> None:
    package = member.replace("-", "_")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()

    assert f"{package}/py.typed" in names
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
    assert {name.split("/")[0].split("-")[0] for name in names} == {package}
    assert [name for name in names if "/tests/" in name or "/test_" in name or name.endswith(".pyc")] == []


def test_the_metadata_says_licence_pythons_and_what_it_is(wheel: Path, member: str) -> None:
    metadata = metadata_of(wheel)

    assert metadata["Name"] == member
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Summary"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert f"pip install {member}" in str(metadata.get_payload())


def test_versions_move_in_lockstep(wheels: list[Path]) -> None:
    assert len({metadata_of(wheel)["Version"] for wheel in wheels}) == 1


def test_members_ask_for_each_other_within_one_minor_release(wheel: Path) -> None:
    major, minor = metadata_of(wheel)["Version"].split(".")[:2]
    wanted = SpecifierSet(f">={major}.{minor},<{major}.{int(minor) + 1}")

    asked = map(Requirement, metadata_of(wheel).get_all("Requires-Dist", []))

    assert [str(one) for one in asked if one.name in MEMBERS and one.specifier != wanted] == []


def test_entry_points_name_what_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    values = [value for group in entry_points_of(wheel).values() for value in group.values()]

    assert values
    for value in values:
        module = value.partition(":")[0].replace(".", "/")
        assert {f"{module}.py", f"{module}/__init__.py"} & names, value


def test_entry_points_of_ours_can_be_loaded() -> None:
    groups = ("weightwire", "console_scripts", "pytest11")
    points = [p for group in groups for p in entry_points(group=group) if p.module.startswith("weightwire")]

    assert points
    assert all(point.load() for point in points)


def test_no_tests_folder_has_an_init_file() -> None:
    """In importlib mode two of them would be one module, and the tests of the second would silently not run."""
    folders = [path for top in ("packages", "plugins", "integration_tests") for path in (ROOT / top).rglob("tests")]
    assert folders
    assert [path for folder in folders for path in folder.rglob("__init__.py")] == []


def test_a_wheel_installs_alone(install: Callable[[str], Path], wheel: Path, member: str) -> None:
    python = str(install(member) / "python")

    registered = run([python, "-I", "-c", LOOK_AROUND, member.replace("-", "_")]).split()

    assert (member in registered) == ("weightwire" in entry_points_of(wheel))
    run(["uv", "pip", "check", "--quiet", "--python", python])


def test_the_command_without_its_extra_says_what_to_install(install: Callable[[str], Path]) -> None:
    bin_folder = install("weightwire")

    done = subprocess.run(
        [str(bin_folder / "weightwire"), "status"], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode != 0
    assert "weightwire[cli]" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_with_its_extra_runs(install: Callable[[str], Path]) -> None:
    bin_folder = install("weightwire[cli]")
    assert "weightwire" in run([str(bin_folder / "weightwire"), "--help"])
