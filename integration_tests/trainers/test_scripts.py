"""The scripts of the adapters' pages run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import weightwire
from launch import torchrun
from weightwire.states import EngineState
from weightwire_testing.sampling import score

DOCS = Path(__file__).parents[2] / "docs"
PROMPT = [5, 6, 7, 300, 8, 9]


def script_of(page: str) -> str:
    """The one whole script of a page: the block that begins with the name of a file."""
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL)
    (script,) = [block for block in blocks if block.startswith(f'"""train_{page}.py: ')]
    return script


@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", ["fsdp2", "deepspeed"])
def test_the_script_of_a_page_runs_as_it_stands_there(page: str, reference_engine, tiny_checkpoint, tmp_path) -> None:
    engine = reference_engine()
    before = score(engine.url, PROMPT)
    script = tmp_path / f"train_{page}.py"
    script.write_text(script_of(page))
    said = torchrun(2, script, [str(tiny_checkpoint), engine.url])
    assert re.findall(r"step (\d), loss [\d.]+, pushed \d+ bytes", said) == ["2", "4"], said
    found = weightwire.inspect(engine.url)
    assert (found.weight_version, found.state, found.paused) == ("4", EngineState.WHOLE, False)
    assert max(abs(x - y) for x, y in zip(before, score(engine.url, PROMPT), strict=True)) > 1e-2
